"""Reports of studies of clusters: a summary for the terminal's text, and the page."""
