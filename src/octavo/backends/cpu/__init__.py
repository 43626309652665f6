"""The ops in C++ on the cores of this machine: backend.py makes a builder, builder.py lowers, plan.py runs."""
