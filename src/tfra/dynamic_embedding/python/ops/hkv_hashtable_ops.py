"""`HkvHashTable`, under the name of its module in TFRA."""

from tfra.dynamic_embedding._config import HkvEvictStrategy
from tfra.dynamic_embedding._tables import HkvHashTable

__all__ = ["HkvEvictStrategy", "HkvHashTable"]
