"""Results as self-contained pages: one HTML file with its style, script and plots inside, that loads nothing.

``page.py`` fills a template and says what a page may do; ``svg.py`` draws, ``series.py`` thins out; one module for each
kind of plot (``accept``, ``timeline``, ``posterior``, ``rate``, ``heatmap``) and one for each command's page.
"""
