"""A run as one HTML page that can be sent. `facts` reads the run folder, `charts` draws, `sentences` says it, `page`
puts it into a template."""
