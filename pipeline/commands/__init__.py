"""Commands of `steptime` that are loaded when they are asked for, so that a prediction does not wait for them."""
