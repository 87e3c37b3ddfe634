"""Export: what a run has left, in a form that others can load, with proof that it is the model that was trained. What the card says
is read where the page of a run reads it (`report/facts.py`)."""
