"""A run as one HTML page to send: `facts` reads the folder, `charts` draws, `sentences` describes, `page` renders."""
