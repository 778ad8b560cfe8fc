# SPDX-License-Identifier: Apache-2.0
"""Lifecycle and parameters of a real node process: any order of transitions, refusals with reasons, clean ends."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.parameter import parameter_dict_from_yaml_file, parameter_value_to_python
from support.running_node import PATIENCE, RunningNode, image, picture, running_node

from ros_kvstream.srv import MemoryFile

CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE
DEACTIVATE, CLEANUP = Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    parameters = {"model": random_model, "autostart": False}
    with running_node(tmp_path_factory.mktemp("lifecycle"), parameters) as running:
        yield running


def go(node: RunningNode, state: str) -> None:
    """Bring the node to a state by the shortest way."""
    ways = {"unconfigured": {"inactive": [CLEANUP], "active": [DEACTIVATE, CLEANUP]},
            "inactive": {"unconfigured": [CONFIGURE], "active": [DEACTIVATE]},
            "active": {"unconfigured": [CONFIGURE, ACTIVATE], "inactive": [ACTIVATE]}}
    for transition in ways[state].get(node.lifecycle_state(), []):
        assert node.change(transition), node.output()
    assert node.lifecycle_state() == state


def test_without_autostart_the_node_waits_unconfigured_and_says_so(node: RunningNode) -> None:
    assert node.lifecycle_state() == "unconfigured"
    status = node.status("state")
    assert status.level == DiagnosticStatus.WARN and status.message.startswith("unconfigured")


def test_while_the_model_is_loaded_the_node_answers_and_takes_no_other_transition(node: RunningNode) -> None:
    go(node, "unconfigured")
    request = ChangeState.Request(transition=Transition(id=CONFIGURE))
    configuring = node.begin(ChangeState, "/kvstream/change_state", request)
    answer = node.ask("what is there ?")
    while "unconfigured" in answer.message and not configuring.done():  # two services: no order between them
        answer = node.ask("what is there ?")
    assert not answer.success
    if not configuring.done():  # the first load takes seconds
        assert answer.message == "the node is configuring: activate it first."
        assert "while the node is unconfigured" in node.set_parameter("memory.block_frames", 2)
        assert not node.change(CONFIGURE)
    node.until(configuring.done, "the end of the transition")
    assert configuring.result().success
    go(node, "unconfigured")


@pytest.mark.parametrize("state", ["unconfigured", "inactive"])
def test_a_question_to_a_node_that_is_not_active_is_refused(node: RunningNode, state: str) -> None:
    go(node, state)
    response = node.ask("what is there ?")
    assert not response.success and response.message == f"the node is {state}: activate it first."


def test_clear_without_a_memory_is_refused(node: RunningNode) -> None:
    go(node, "unconfigured")
    response = node.clear()
    assert not response.success and "no memory to clear" in response.message


@pytest.mark.parametrize(("state", "wrong"), [
    ("unconfigured", [ACTIVATE, DEACTIVATE, CLEANUP]), ("inactive", [CONFIGURE, DEACTIVATE]),
    ("active", [CONFIGURE, ACTIVATE, CLEANUP]),
])
def test_a_transition_that_a_state_does_not_have_is_refused_and_changes_nothing(
        node: RunningNode, state: str, wrong: list[int]) -> None:
    go(node, state)
    for transition in wrong:
        assert not node.change(transition)
        assert node.lifecycle_state() == state


def test_the_memory_survives_deactivation_and_is_empty_after_a_new_configure(node: RunningNode) -> None:
    go(node, "active")
    camera = node.camera("/image")
    camera.publish(image(picture(1), 5.0))
    node.until_stats(lambda stats: stats.frames_remembered == 1)
    go(node, "inactive")
    go(node, "active")
    assert node.ask("what is there ?", max_new_tokens=1).success
    go(node, "unconfigured")
    go(node, "active")
    assert node.ask("what is there ?").finish_reason == "not_covered"


def test_rounds_of_all_transitions_do_not_grow_the_process(node: RunningNode) -> None:
    sizes = []
    for _ in range(50):
        go(node, "unconfigured")
        go(node, "active")
        node.stats = None
        sizes.append(node.until_stats(lambda _: True).process_bytes)
    # Two sizes take turns, since the allocator reuses what every other round gave back: their mean may not grow.
    # One size alone may be taken while what a round used is still being given back: hence the median.
    pairs = [(first + second) / 2 for first, second in zip(sizes, sizes[1:], strict=False)]
    early, late = statistics.median(pairs[10:20]), statistics.median(pairs[-10:])
    assert late < 1.02 * early, sizes


def test_a_budget_too_small_fails_configure_and_names_the_smallest_that_works(node: RunningNode) -> None:
    go(node, "unconfigured")
    assert node.set_parameter("memory.budget_mib", 0.1) == ""
    assert not node.change(CONFIGURE)
    assert node.lifecycle_state() == "unconfigured"
    status = node.until_status("state", lambda status: status.level == DiagnosticStatus.ERROR)
    assert "configure failed" in status.message and "memory.budget_mib = 0.1 is too small" in status.message
    smallest = float(status.message.split("at least ")[1].rstrip("."))
    assert node.set_parameter("memory.budget_mib", smallest) == ""
    assert node.change(CONFIGURE), node.output()
    go(node, "unconfigured")
    assert node.set_parameter("memory.budget_mib", 8.0) == ""


@pytest.mark.parametrize(("path", "reason"), [
    ("/nowhere/at/all", "no such folder"), (str(Path(__file__).parent), "no config.json"),
])
def test_a_model_that_is_not_there_fails_configure_with_the_reason(
        node: RunningNode, random_model: Path, path: str, reason: str) -> None:
    go(node, "unconfigured")
    assert node.set_parameter("model", path) == ""
    assert not node.change(CONFIGURE)
    node.until_status("state", lambda status: status.level == DiagnosticStatus.ERROR and reason in status.message)
    assert reason in node.output()
    assert node.set_parameter("model", str(random_model)) == ""
    go(node, "inactive")


def test_the_budget_can_be_lowered_and_raised_while_frames_come(node: RunningNode) -> None:
    go(node, "active")
    camera = node.camera("/image")
    for stamp in range(30):
        camera.publish(image(picture(stamp), 10.0 + stamp))
        node.spin(0.03)
    for budget in (1.0, 0.5, 4.0):
        assert node.set_parameter("memory.budget_mib", budget) == ""
        stats = node.until_stats(lambda stats, wanted=budget: stats.budget_bytes == wanted * 2**20)
        assert stats.used_bytes <= stats.allocated_bytes <= stats.budget_bytes
        assert node.ask("what is there ?", max_new_tokens=2).success
    reason = node.set_parameter("memory.budget_mib", 0.05)
    assert "too small" in reason and "at least" in reason
    assert node.ask("what is there ?", max_new_tokens=2).memory.budget_bytes == 4 * 2**20


def test_policy_and_gate_can_be_changed_while_frames_come(node: RunningNode) -> None:
    go(node, "active")
    camera = node.camera("/image")
    try:
        for policy in ("recent", "tar"):
            assert node.set_parameter("memory.policy", policy) == ""
            node.until_stats(lambda stats, wanted=policy: stats.policy == wanted)
        assert node.set_parameter("gate.mode", "flow") == ""
        gated = node.until_stats(lambda _: True).frames_gated
        for number in range(4):
            camera.publish(image(picture(1), 500.0 + number / 10))
            node.spin(0.1)
        node.until_stats(lambda stats: stats.frames_gated > gated)
        assert node.set_parameter("gate.mode", "off") == ""
        before = node.until_stats(lambda stats: stats.queue_length == 0)
        for number in range(4):
            camera.publish(image(picture(1), 501.0 + number / 10))
            node.spin(0.1)
        after = node.until_stats(lambda stats: stats.frames_seen == before.frames_seen + 4)
        assert after.frames_gated == before.frames_gated
        assert node.ask("what is there ?", max_new_tokens=2).success
    finally:
        assert node.set_parameter("memory.policy", "sliding_window") == ""
        assert node.set_parameter("gate.mode", "flow") == ""


@pytest.mark.parametrize(("name", "value", "reason"), [
    ("memory.budget_mib", float("nan"), "nan"),
    ("memory.budget_mib", -1.0, "-1.0"),
    ("memory.budget_mib", "much", "must be of type number"),
    ("memory.budget_mib", True, "must be of type number"),
    ("device", "cpu", "while the node is unconfigured"),
    ("memory.tar.recent_share", "half", "must be of type number"),
    ("memory.keep_ratio", 1.0, "1"),
    ("query.max_waiting", 0, "0"),
    ("query.max_waiting", 2.5, "must be of type integer"),
    ("faults.action", "explode", "must be one of continue, deactivate"),
    ("cameras", ["a", "a"], "distinct names"),
    ("cameras", ["memory"], "no parameter's name"),
    ("cameras", ["a b"], "letters, digits"),
    ("camera.transport", "theora", "must be one of raw, compressed"),
    ("autostart", True, ""),
    ("no.such.parameter", 1, ""),
], ids=str)
def test_a_bad_change_is_refused_with_the_reason(node: RunningNode, name: str, value: object, reason: str) -> None:
    go(node, "inactive")
    refusal = node.set_parameter(name, value)
    assert refusal and reason in refusal


def test_whole_numbers_and_bare_words_are_taken_as_meant(node: RunningNode) -> None:
    go(node, "unconfigured")
    assert node.set_parameter("memory.budget_mib", 8) == ""
    assert node.set_parameter("gate.mode", False) == ""  # what YAML makes of a bare off
    go(node, "inactive")
    go(node, "unconfigured")
    assert node.set_parameter("gate.mode", "flow") == ""


def test_a_dump_of_the_nodes_parameters_can_be_loaded_while_it_is_active(node: RunningNode, tmp_path: Path) -> None:
    go(node, "active")
    names = node.call(ListParameters, "/kvstream/list_parameters", ListParameters.Request()).result.names
    values = node.call(GetParameters, "/kvstream/get_parameters", GetParameters.Request(names=names)).values
    dump = tmp_path / "dump.yaml"
    own = {name: parameter_value_to_python(value) for name, value in zip(names, values, strict=True)}
    assert {"autostart", "start_type_description_service", "qos_overrides./image.subscription.depth"} <= set(own)
    dump.write_text(yaml.safe_dump({"/kvstream": {"ros__parameters": own}}))
    parameters = parameter_dict_from_yaml_file(str(dump))
    loaded = list(parameters.values())
    assert len(loaded) == len(names)
    single = node.call(SetParameters, "/kvstream/set_parameters", SetParameters.Request(parameters=loaded))
    assert [result.reason for result in single.results if not result.successful] == []
    request = SetParametersAtomically.Request(parameters=loaded)
    together = node.call(SetParametersAtomically, "/kvstream/set_parameters_atomically", request).result
    assert together.successful, together.reason
    parameters["autostart"].value.bool_value = True
    assert not node.call(SetParametersAtomically, "/kvstream/set_parameters_atomically", request).result.successful


def test_parameters_describe_themselves(node: RunningNode) -> None:
    request = DescribeParameters.Request(names=["memory.budget_mib", "memory.policy", "autostart", "camera.topic"])
    response = node.call(DescribeParameters, "/kvstream/describe_parameters", request)
    budget, policy, autostart, topic = response.descriptors
    assert "Hard cap in MiB" in budget.description and "at any time" in budget.additional_constraints
    limits = budget.floating_point_range[0]
    assert (limits.from_value, limits.to_value) == (0.01, float(1 << 22))
    assert "infinipot_v" in policy.additional_constraints and "at any time" in policy.additional_constraints
    assert autostart.read_only and not budget.read_only
    assert "'/compressed'" in topic.description


def test_a_saved_memory_is_loaded_again_and_restored_by_a_new_configure(node: RunningNode, tmp_path: Path) -> None:
    go(node, "unconfigured")
    assert "no memory to save" in node.save("tour").message
    assert node.set_parameter("memory.directory", str(tmp_path)) == ""
    assert node.set_parameter("memory.restore", "tour") == ""
    go(node, "active")
    assert "tour.safetensors does not exist yet" in node.output()
    camera = node.camera("/image")
    for stamp in range(5):
        camera.publish(image(picture(stamp), 10.0 + stamp))
    node.until_stats(lambda stats: stats.newest_stamp.sec == 14 and stats.queue_length == 0)
    before = node.ask("what is there ?", max_new_tokens=5)
    saved = node.save("tour")
    assert saved.success and saved.bytes == (tmp_path / "tour.safetensors").stat().st_size
    assert saved.frames == before.memory.frames_remembered
    assert node.clear().success and node.ask("what is there ?").finish_reason == "not_covered"
    assert node.load("tour").success
    go(node, "unconfigured")
    go(node, "active")
    after = node.ask("what is there ?", max_new_tokens=5)
    assert (after.answer, after.evidence, after.asked_at) == (before.answer, before.evidence, before.asked_at)


def test_a_file_that_cannot_be_loaded_is_refused_with_the_reason(node: RunningNode, tmp_path: Path) -> None:
    go(node, "unconfigured")
    assert node.set_parameter("memory.restore", "") == ""
    assert node.set_parameter("memory.directory", str(tmp_path)) == ""
    go(node, "active")
    (tmp_path / "torn.safetensors").write_bytes(b"half")
    (tmp_path / "link.safetensors").symlink_to("/etc/hostname")
    for name, reason in (("torn", "damaged"), ("none", "does not exist"), ("../torn", "must be letters"),
                         ("/etc/passwd", "must be letters"), ("link", "leads out of memory.directory"),
                         ("", "letters")):
        response = node.load(name)
        assert not response.success and reason in response.message, name
    assert "leads out" in node.save("link").message
    assert node.lifecycle_state() == "active"
    go(node, "unconfigured")
    assert node.set_parameter("memory.restore", "torn") == ""
    assert not node.change(CONFIGURE)
    node.until_status("state", lambda status: status.level == DiagnosticStatus.ERROR and "damaged" in status.message)
    assert node.set_parameter("memory.restore", "") == ""
    assert node.set_parameter("memory.directory", "") == ""
    go(node, "active")
    assert "memory.directory is not set" in node.save("tour").message


def test_cameras_are_added_and_removed_by_a_new_configure(node: RunningNode) -> None:
    go(node, "unconfigured")
    assert node.set_parameter("cameras", ["front", "rear"]) == ""
    go(node, "active")
    front, rear = node.camera("/front/image"), node.camera("/rear/image")
    front.publish(image(picture(1), 5.0))
    rear.publish(image(picture(2, width=112), 5.5))
    node.until_stats(lambda stats: stats.frames_remembered == 2)
    answer = node.ask("what is there ?", camera="rear", max_new_tokens=1)
    assert answer.success and [evidence.camera for evidence in answer.evidence] == ["rear"]
    both = node.ask("what is there ?", max_new_tokens=1)
    assert {evidence.camera for evidence in both.evidence} == {"front", "rear"}
    assert "images on /rear/image" in node.status("camera rear").message
    go(node, "unconfigured")
    assert node.set_parameter("cameras", ["camera"]) == ""
    go(node, "active")
    node.until(lambda: front.get_subscription_count() == 0, "the end of the subscription")


def test_shutdown_leads_to_the_end_state(node: RunningNode) -> None:
    go(node, "inactive")
    assert node.change(Transition.TRANSITION_INACTIVE_SHUTDOWN)
    assert node.lifecycle_state() == "finalized"
    assert "finalized" in node.ask("what ?").message
    assert node.interrupt() == 0 and "Traceback" not in node.output()


@pytest.mark.parametrize(("given", "reason"), [
    ("-p memory.buget_mib:=64.0", "did you mean 'memory.budget_mib'?"),
    ("-p use_sim_time:=1", "'use_sim_time' to '1' of type 'INTEGER', expecting type 'BOOL'."),
    ("-p cameras:=[front,7]", "Sequence should be of same type"),
    ("use_sim_time:=true", "['use_sim_time:=true']. A parameter is given as -p NAME:=VALUE."),
])  # fmt: skip
def test_a_bad_argument_at_start_ends_the_node_with_the_reason(given: str, reason: str) -> None:
    command = [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", *given.split()]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, env=_quiet())
    assert done.returncode == 2 and reason in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_that_starts_itself_names_autostart_to_a_lifecycle_manager(tmp_path: Path, random_model: Path) -> None:
    file = tmp_path / "kvstream.yaml"
    file.write_text("/robot1/kvstream:\n  ros__parameters:\n    autostart: false\n")
    with running_node(tmp_path, {"model": random_model}, "--params-file", str(file)) as node:
        node.until(lambda: "this node, /kvstream. Keys found: /robot1/kvstream." in node.output(), "the unused file")
        node.until_active()
        assert not node.change(CONFIGURE)
        assert "autostart to false when a lifecycle manager does that" in node.output()


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.0, 1.5])
def test_ctrl_c_while_modules_are_imported_ends_the_node_without_an_error(delay: float) -> None:
    code = "from ros_kvstream.node.main import main, os\nprint('importing', flush=True)\nmain()"
    with subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=_quiet()) as process:  # fmt: skip
        assert process.stdout is not None and "importing" in process.stdout.readline()
        time.sleep(0.01 + delay)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0 and "Traceback" not in rest


SLOW_SAVE = """
import os, time
from ros_kvstream.node import lifecycle_node
from ros_kvstream.node.main import main

def wait(file):
    print("half written", flush=True)
    time.sleep(600)

os.fsync = wait
lifecycle_node.END_SECONDS = 1.0
main()
"""


def test_ctrl_c_pressed_again_and_again_during_a_save_leaves_nothing_behind(tmp_path: Path, random_model: Path) -> None:
    folder = tmp_path / "memories"
    folder.mkdir()
    stale = folder / "m.safetensors.999999999.part"
    stale.write_bytes(bytes(100))
    os.utime(stale, (1.0, 1.0))
    parameters = {"model": random_model, "memory.directory": folder}
    with running_node(tmp_path, parameters, program=("-c", SLOW_SAVE)) as node:
        node.until_active()
        assert "removed m.safetensors.999999999.part" in node.output() and not stale.exists()
        client = node.client.create_client(MemoryFile, "/kvstream/save")
        assert client.wait_for_service(PATIENCE)
        client.call_async(MemoryFile.Request(name="m"))
        node.until(lambda: "half written" in node.output(), "half of the file")
        assert len([*folder.iterdir()]) == 1
        for _ in range(4):
            node.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(PATIENCE) == 0 and "Traceback" not in node.output()
        assert not [*folder.iterdir()]


def test_ctrl_c_while_the_node_is_being_made_ends_it_without_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time\nfrom ros_kvstream.node import lifecycle_node, main\n"
                           "def heard(*_):\n    print('making', flush=True)\n    time.sleep(600)\n"
                           "lifecycle_node.Services = heard\nmain.main()"],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_quiet()) as process:
        assert process.stdout is not None and "making" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0 and "Traceback" not in rest


def test_ctrl_c_while_the_model_is_loaded_ends_the_node_at_once(tmp_path: Path, random_model: Path) -> None:
    with running_node(tmp_path, {"model": random_model}) as node:
        node.until(lambda: node.client.count_publishers("/diagnostics") > 0, "the node")
        assert node.interrupt() == 0, node.output()
        assert "Traceback" not in node.output()


def _quiet() -> dict[str, str]:
    return {**os.environ, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": "19"}
