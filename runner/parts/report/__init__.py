"""A run as one HTML page to send. `facts` reads the run folder, `charts` draws, `sentences` describes, `page`
renders."""
