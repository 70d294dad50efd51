"""Figures of errors: predictions beside measured steps, public traces and published errors."""
