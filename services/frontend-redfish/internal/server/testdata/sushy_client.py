# SPDX-FileCopyrightText: The KubeVirtBMC Authors
# SPDX-License-Identifier: Apache-2.0

"""Does with sushy what Ironic does: python3 sushy_client.py URL session|basic."""

import logging
import sys
import time
import warnings

import sushy
from sushy import auth as sushy_auth

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def check(what, got, want):
    if got != want:
        sys.exit("%s is %r, want %r" % (what, got, want))


def wait_for(system, state):
    for _ in range(20):
        system.refresh(force=True)
        if system.power_state == state:
            return
        time.sleep(0.1)
    sys.exit("power state is %r, want %r" % (system.power_state, state))


def connect(url, mode, password="correct horse"):
    kind = sushy_auth.SessionAuth if mode == "session" else sushy_auth.BasicAuth
    return sushy.Sushy(url, verify=False, auth=kind(username="admin", password=password))


url, mode = sys.argv[1:]
root = connect(url, mode)
members = root.get_system_collection().get_members()
check("number of systems", len(members), 1)
system = root.get_system("/redfish/v1/Systems/1")
check("managers", [m.identity for m in system.managers], ["BMC"])
check("chassis", [c.identity for c in system.chassis], ["1"])
check("manufacturer", system.manufacturer, "KubeVirt")
check("uuid", system.uuid, "5d307ca9-b3ef-428c-8861-06e72d69f223")

# Firmware settings, as Ironic's bios and management interfaces.
check("BIOS attributes", system.bios.attributes, {"BootMode": "UEFI", "SecureBoot": "Enabled"})
system.bios.set_attribute("BootMode", "UEFI")
check("pending attributes", system.bios.pending_attributes, {"BootMode": "UEFI"})
check("Secure Boot", system.secure_boot.enabled, True)

# Power, as Ironic's redfish driver.
wait_for(system, sushy.POWER_STATE_ON)
system.reset_system(sushy.RESET_FORCE_OFF)
wait_for(system, sushy.POWER_STATE_OFF)
system.reset_system(sushy.RESET_FORCE_OFF)
system.reset_system(sushy.RESET_ON)
wait_for(system, sushy.POWER_STATE_ON)
system.reset_system(sushy.RESET_GRACEFUL_RESTART)
system.reset_system(sushy.RESET_GRACEFUL_SHUTDOWN)
wait_for(system, sushy.POWER_STATE_OFF)
try:
    system.reset_system(sushy.RESET_GRACEFUL_RESTART)
    sys.exit("a graceful restart of a machine that is off succeeds")
except sushy.exceptions.HTTPError as e:
    check("status of a graceful restart of a machine that is off", e.status_code, 409)
try:
    system.reset_system(sushy.RESET_NMI)
    sys.exit("NMI succeeds")
except sushy.exceptions.InvalidParameterValueError:
    pass

# Boot device: for one boot, for good, target alone, mode alone.
system.set_system_boot_options(target=sushy.BOOT_SOURCE_TARGET_PXE, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)
system.refresh(force=True)
check("target", system.boot.target, sushy.BOOT_SOURCE_TARGET_PXE)
check("enabled", system.boot.enabled, sushy.BOOT_SOURCE_ENABLED_ONCE)
check("mode", system.boot.mode, sushy.BOOT_SOURCE_MODE_UEFI)
system.reset_system(sushy.RESET_ON)
system.refresh(force=True)
check("enabled after a boot", system.boot.enabled, sushy.BOOT_SOURCE_ENABLED_DISABLED)
system.set_system_boot_options(target=sushy.BOOT_SOURCE_TARGET_HDD, enabled=sushy.BOOT_SOURCE_ENABLED_CONTINUOUS)
system.refresh(force=True)
system.set_system_boot_options(target=sushy.BOOT_SOURCE_TARGET_CD)
system.refresh(force=True)
check("target", system.boot.target, sushy.BOOT_SOURCE_TARGET_CD)
check("enabled", system.boot.enabled, sushy.BOOT_SOURCE_ENABLED_CONTINUOUS)
system.set_system_boot_options(mode=sushy.BOOT_SOURCE_MODE_UEFI)
try:
    system.set_system_boot_options(mode=sushy.BOOT_SOURCE_MODE_BIOS)
    sys.exit("a UEFI machine takes mode Legacy")
except sushy.exceptions.BadRequestError:
    pass
system.refresh(force=True)
check("target after a refused mode", system.boot.target, sushy.BOOT_SOURCE_TARGET_CD)

# Inspection.
check("memory", system.memory_summary.size_gib, 4)
check("cpus", system.processors.summary.count, 4)
check("architecture", system.processors.summary.architecture, sushy.PROCESSOR_ARCH_x86)
check("MAC addresses", sorted(system.ethernet_interfaces.summary), ["02:00:00:00:00:01", "02:00:00:00:00:02"])
check("simple storage", system.simple_storage.disks_sizes_bytes, [8 << 30, 20 << 30])
check("drives", system.storage.drives_sizes_bytes, [8 << 30, 20 << 30])
check("volumes", system.storage.volumes_sizes_bytes, [])

# The manager.
manager = root.get_manager("/redfish/v1/Managers/BMC")
check("systems of the manager", [s.identity for s in manager.systems], ["1"])
manager.reset_manager(sushy.RESET_MANAGER_GRACEFUL_RESTART)

# A session that the BMC has ended is replaced.
if mode == "session":
    connector = root._conn
    connector._session.headers["X-Auth-Token"] = "stale"
    system.refresh(force=True)

try:
    connect(url, mode, "wrong").get_system("/redfish/v1/Systems/1")
    sys.exit("a wrong password is accepted")
except sushy.exceptions.AccessError:
    pass
print("ok")
