"""`nki.language`: the simulator's, whose signatures `scripts/generate_api_table.py` compares with
the documentation."""

from trnx.simulator.frontend.nki_modules import nki_modules

_MEMBERS = vars(nki_modules()["nki.language"])
globals().update({name: value for name, value in _MEMBERS.items() if not name.startswith("__")})
__trnx__ = True
