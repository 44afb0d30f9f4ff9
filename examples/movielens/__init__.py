"""A recommender that learns from a stream of ratings, in which new users and films keep arriving.

The demo plays the million ratings of MovieLens-1M in the order of their times, and two models learn
from them. The models differ only in their tables. In the first model (`tfra`) every user and film
gets its own row when training first sees it. In the second model (the hashing trick) a hash of the
key selects a row, so that keys share rows; its tables take the same memory.

    PYTHONPATH=examples python -m movielens              # `make demo` does this
    PYTHONPATH=examples python -m movielens --ratings 50000 --source generated
"""

import os

# TensorFlow reads this when it is imported: print warnings and errors only.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
