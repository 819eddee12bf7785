"""Widgets for notebooks: a title playground, a model manager, a latency view, a progress bar, blind rating.

Each is drawn by ipywidgets where that can run, and is text everywhere else; none needs ipywidgets to be
imported or called. What they do runs in a thread of its own, so that the kernel stays free and Stop stops.

    from tinykit import widgets

    widgets.TitlePlayground()
"""

from tinykit.widgets.job import Job
from tinykit.widgets.latency import LatencyView
from tinykit.widgets.manager import ModelManager
from tinykit.widgets.playground import TitlePlayground
from tinykit.widgets.progress_bar import ProgressBar
from tinykit.widgets.rating import RatingView

__all__ = ["Job", "LatencyView", "ModelManager", "ProgressBar", "RatingView", "TitlePlayground"]
