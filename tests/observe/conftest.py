"""The functions of observe/ that a test calls by themselves rely on what `require` looks up."""

from noclobber.observe.torch_api import required

required.look_up()
