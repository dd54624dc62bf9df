# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0
"""Switches a machine on and off and sets its boot device, as Ironic does.

Usage: sushy_power.py URL USER PASSWORD
"""
import sys
import time
import warnings

import sushy
from sushy import auth, exceptions

warnings.filterwarnings("ignore")
url, user, password = sys.argv[1:]


def wait_for(system, state):
    for _ in range(300):
        system.refresh(force=True)
        if system.power_state == state:
            return
        time.sleep(0.2)
    raise SystemExit(f"no power state {state}: {system.power_state}")


def check(what, got, want):
    print(f"{what}: {got}")
    if got != want:
        raise SystemExit(f"{what} is {got!r}, want {want!r}")


for make in (auth.SessionAuth, auth.BasicAuth):
    root = sushy.Sushy(url, auth=make(user, password), verify=False)
    systems = root.get_system_collection().get_members()
    check("systems", len(systems), 1)
    system = systems[0]
    check("managers", len(system.managers), 1)
    check("chassis", len(system.chassis), 1)
    wait_for(system, sushy.PowerState.OFF)

    system.set_system_boot_options(
        sushy.BootSource.PXE, enabled=sushy.BootSourceOverrideEnabled.ONCE)
    system.refresh(force=True)
    check("target", system.boot.target, sushy.BootSource.PXE)
    check("enabled", system.boot.enabled, sushy.BootSourceOverrideEnabled.ONCE)
    check("mode", system.boot.mode, sushy.BootSourceOverrideMode.UEFI)

    system.reset_system(sushy.ResetType.ON)
    wait_for(system, sushy.PowerState.ON)
    for _ in range(50):  # The override is used up by the start.
        system.refresh(force=True)
        if system.boot.enabled == sushy.BootSourceOverrideEnabled.DISABLED:
            break
        time.sleep(0.2)
    check("enabled", system.boot.enabled, sushy.BootSourceOverrideEnabled.DISABLED)

    system.set_system_boot_options(
        sushy.BootSource.HDD, enabled=sushy.BootSourceOverrideEnabled.CONTINUOUS)
    system.set_system_boot_options(sushy.BootSource.CD)  # Target alone.
    system.refresh(force=True)
    check("target", system.boot.target, sushy.BootSource.CD)
    check("enabled", system.boot.enabled, sushy.BootSourceOverrideEnabled.CONTINUOUS)
    try:
        system.set_system_boot_options(mode=sushy.BootSourceOverrideMode.LEGACY)
    except exceptions.HTTPError as error:
        check("Legacy on a UEFI machine", error.status_code, 400)
    else:
        raise SystemExit("a UEFI machine took boot mode Legacy")

    system.reset_system(sushy.ResetType.FORCE_RESTART)
    wait_for(system, sushy.PowerState.ON)
    system.reset_system(sushy.ResetType.GRACEFUL_SHUTDOWN)
    wait_for(system, sushy.PowerState.OFF)
    system.set_system_boot_options(
        sushy.BootSource.NONE, enabled=sushy.BootSourceOverrideEnabled.DISABLED)

for wrong in ((user, "wrong"), ("nobody", password)):
    try:
        sushy.Sushy(url, auth=auth.SessionAuth(*wrong), verify=False).get_system_collection()
    except exceptions.AccessError as error:
        check(f"login as {wrong[0]} with a wrong password", error.status_code, 401)
    else:
        raise SystemExit(f"login as {wrong} succeeded")
