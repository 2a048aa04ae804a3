"""The linear algebra extension of the array API."""
