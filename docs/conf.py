"""Sphinx: the pages of this folder as a site that fetches nothing. `make docs` builds it into
build/docs."""

project = "recipe-runner"
extensions = ["myst_parser"]
exclude_patterns = ["making"]
# Headings of these levels can be linked to by their words, as on GitHub.
myst_heading_anchors = 4
# Quotes and dashes stay what is typed.
smartquotes = False
highlight_language = "text"
# A link to a page or a heading that is not there ends the build.
nitpicky = True

html_theme = "furo"
html_title = "recipe-runner"
html_static_path = ["style"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_use_index = False
