# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
"""Switches a machine on and off and sets its boot device over one session.

Usage: pyghmi_power.py PORT USER PASSWORD
"""
import sys
import time

from pyghmi import exceptions
from pyghmi.ipmi import command

port, user, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def check(what, got, want):
    print(f"{what}: {got}")
    if got != want:
        raise SystemExit(f"{what} is {got!r}, want {want!r}")


def wait_for(bmc, state):
    for _ in range(300):
        if bmc.get_power()["powerstate"] == state:
            return
        time.sleep(0.2)
    raise SystemExit(f"no power state {state}")


bmc = command.Command(bmc="127.0.0.1", userid=user, password=password, port=port)
check("power", bmc.get_power()["powerstate"], "off")
bmc.set_bootdev("network")
check("boot device", bmc.get_bootdev()["bootdev"], "network")
bmc.set_bootdev("hd", persist=True)
check("persistent", bmc.get_bootdev()["persistent"], True)
bmc.set_power("on")
wait_for(bmc, "on")
bmc.set_power("reset")
wait_for(bmc, "on")
bmc.set_power("off")
wait_for(bmc, "off")
bmc.ipmi_session.logout()
try:
    command.Command(bmc="127.0.0.1", userid=user, password="wrong", port=port)
except exceptions.IpmiException as error:
    print(f"wrong password: {error}")
else:
    raise SystemExit("a wrong password was taken")
