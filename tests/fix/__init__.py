"""Tests of `noclobber fix`: what is written is what was meant, and nothing wrong is called proven."""
