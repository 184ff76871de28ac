"""How a trained network distributes images over paths: pure functions on arrays, one idea a file.

A network arrives as a callable from images to `RoutedOutput`; only `folders` knows that run folders exist.
"""

from codinet.analysis.folders import Request, analysis_of
from codinet.analysis.result import RunAnalysis

__all__ = ["Request", "RunAnalysis", "analysis_of"]
