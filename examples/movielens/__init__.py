"""A recommender that learns from a stream of ratings, in which new users and films keep arriving.

The million ratings of MovieLens-1M are played in the order of their times. Two models learn from
them. They differ in one thing: in the first, every user and film has its own row, made when
training first sees it (`tfra`); in the second, a hash of the key decides which keys share a row
(the hashing trick), in a table of the same memory.

    PYTHONPATH=examples python -m movielens              # `make demo` does this
    PYTHONPATH=examples python -m movielens --ratings 50000 --source generated
"""

import os

# Read by TensorFlow when it is imported: warnings only.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
