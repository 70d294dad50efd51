"""Chooses the model of a GPU, a host or a link, best first. Predictions, the tracker and what-ifs are assembled
here.
"""
