"""A run's model in a form that others can load, with proof that it is the model that was trained."""
