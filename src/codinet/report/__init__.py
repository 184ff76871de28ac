"""Reports on run folders: figures and tables on one HTML page.

`drawing` has the style of all figures and can be used on its own; `build_report` puts a report together.
"""
