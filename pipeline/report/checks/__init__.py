"""Predictions held against public measurements: tables of errors that figures and README are made of."""
