"""One case for each command that the product advises: how it is typed, and where its outcome is asserted.

    READS            typed at a node that serves: exit code 0
    HELP             typed: the document and its section are there
    a test           typed there in the situation that advises it, with the outcome asserted

The key is the command without its values: its path and its options. A remedy without a case fails `test_remedies.py`;
so does a case whose test is gone, or no longer types the command.
"""

from typing import Final

READS: Final = "typed at a node that serves"
HERE: Final = "tests/remedies/test_remedies.py"
LEADER: Final = "tests/node/test_cli_leader.py"
CONTROL: Final = "tests/node/test_cli_management.py"

CASES: Final[dict[str, str]] = {
    "status": READS,
    "status --json": READS,
    "status --node": "tests/node/test_cli_commands.py",
    "farm": READS,
    "servers": READS,
    "servers list": READS,
    "members": READS,
    "events": READS,
    "events --kind": READS,
    "keys list": READS,
    "log": READS,
    "log-time show": READS,
    "backup": "tests/end_to_end/test_identities.py::"
    "test_a_router_that_lost_its_state_comes_back_from_a_backup_once_it_is_approved",
    "completion": "tests/node/test_completion.py",
    "config": "tests/node/test_cli_config.py",
    "config show": "tests/node/test_cli_config.py",
    "config show --config": "tests/node/test_cli_config.py",
    "debug": "tests/node/test_cli_debug.py",
    "doctor": "tests/node/test_cli_doctor.py",
    "doctor --config": "tests/node/test_cli_doctor.py",
    "event": "tests/node/test_cli_event.py",
    "keys export": f"{HERE}::test_the_advice_about_the_key_file_ends_its_alarm",
    "keys export --replace": f"{HERE}::test_the_advice_about_the_key_file_ends_its_alarm",
    "keys kafka-user": "tests/node/test_kafka_users.py",
    "keys kafka-user --name --scope": "tests/node/test_kafka_users.py",
    "keys new-client": f"{HERE}::test_the_guide_to_client_keys_works_as_it_is_written",
    "keys new-client --name": f"{HERE}::test_the_guide_to_client_keys_works_as_it_is_written",
    "keys new-curve": "tests/node/test_cli_keys.py",
    "keys new-curve --name": "tests/node/test_cli_keys.py",
    "keys new-destination": "tests/node/test_cli_destination_keys.py",
    "keys new-farm": "tests/node/test_cli_keys.py",
    "keys new-farm --expect": "tests/node/test_cli_keys.py",
    "keys offline": f"{HERE}::test_the_advice_about_a_signing_key_ends_its_alarm",
    "keys offline --master --out": f"{HERE}::test_the_advice_about_a_signing_key_ends_its_alarm",
    "keys replace": "tests/end_to_end/test_keys.py",
    "keys rotate": "tests/node/test_rotation_command.py",
    "keys show-curve": "tests/node/test_cli_keys.py",
    "leave": "tests/node/test_cli_commands.py",
    "lease-set show": "tests/node/test_cli_lease_set.py",
    "log verify": "tests/node/test_log_verify.py",
    "log-time back": CONTROL,
    "monitor": "tests/node/test_cli_watching.py",
    "node admit-client": f"{HERE}::test_the_guide_to_client_keys_works_as_it_is_written",
    "node approve": "tests/end_to_end/test_identities.py",
    "node clients": CONTROL,
    "node evict": LEADER,
    "node list": LEADER,
    "node remove-client": f"{HERE}::test_the_guide_to_client_keys_works_as_it_is_written",
    "publish cost": CONTROL,
    "publish exclude": CONTROL,
    "publish force": CONTROL,
    "recover": "tests/end_to_end/test_survivor.py",
    "recover --from": "tests/end_to_end/test_survivor.py",
    "recover --cut-after --from": "tests/node/test_recovering_poisoned.py",
    "recover --farm-key --from --reset": "tests/node/test_recovering.py",
    "recover --from --state-dir": "tests/node/test_made_before.py",
    "restore": "tests/end_to_end/test_identities.py",
    "run": "tests/end_to_end/test_run.py",
    "run --config": "tests/end_to_end/test_run.py",
    "servers remove": f"{HERE}::test_the_advice_after_a_loss_is_never_refused",
    "servers restore": CONTROL,
    "submit": f"{HERE}::test_the_guide_to_client_keys_works_as_it_is_written",
    "top": "tests/node/test_top.py",
    "transfer": "tests/node/test_cli_commands.py",
    "transfer --to": "tests/node/test_cli_commands.py",
    "up": "tests/end_to_end/test_up.py",
    "up --servers": "tests/end_to_end/test_up.py",
}
APART: Final = ("help", "kraft", "zmq-raft", "pipeline", "simulate")
"""`help` is typed, all of it. The others act on no farm: they are parsed here, and typed in their own tests."""
