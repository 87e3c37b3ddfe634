"""A run as one HTML page that can be sent. `facts` reads the run folder, `charts` draws, `sentences` describes it,
`page` fills a template."""
