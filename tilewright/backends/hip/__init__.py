"""AMD cards, as text: kernels in HIP C++. Nothing here has been run on a card."""
