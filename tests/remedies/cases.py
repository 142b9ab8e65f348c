"""One case for each command that the product advises: the test that runs it and asserts its outcome.

    READS            run at a fabricated node: exit code 0
    GUIDE            run as a line of docs/how-to/client-keys.md by `test_client_key_guide_commands_succeed`
    file::test       run by this test in the situation of the advice, with an assertion of its outcome

The key is the command without values: its path and its options. A remedy without a case fails `test_remedies.py`. A
case fails if its test does not exist, or does not run the command (`typing.py`).
"""

from typing import Final

READS: Final = "typed at a node that serves"
GUIDE: Final = "typed by a reader of the guide"
HERE: Final = "tests/remedies/test_remedies.py"
DECIDED: Final = "tests/node/test_cli_management.py::test_operator_command_is_sent_to_node"
FOUNDING: Final = "tests/end_to_end/test_founding_commands.py::test_three_machines_make_farm_with_one_command_each"
LOST: Final = "tests/end_to_end/test_identities.py::test_node_without_state_joins_from_backup_after_approval"

CASES: Final[dict[str, str]] = {
    "status": READS,
    "status --json": READS,
    "status --node": "tests/node/test_cli_commands.py::test_command_to_stopped_node_ends_after_timeout",
    "farm": READS,
    "servers": READS,
    "servers list": READS,
    "members": READS,
    "members --rtt": "tests/node/test_cli_watching.py::test_round_trips_of_all_nodes_are_listed",
    "events": READS,
    "events --kind": READS,
    "keys list": READS,
    "log": READS,
    "log-time show": READS,
    "backup": LOST,
    "confirm-cluster": "tests/end_to_end/test_copied_key.py::test_new_node_without_cluster_id_waits_for_confirmation",
    "completion": "tests/node/test_completion.py::test_completion_script_is_valid_for_shell",
    "config": "tests/node/test_cli_config.py::test_import_writes_settings_with_own_name_key_and_leaf",
    "config show": "tests/node/test_cli_config.py::test_shown_configuration_is_complete_without_secrets",
    "config show --config": "tests/node/test_cli_config.py::test_shown_configuration_is_complete_without_secrets",
    "connect": "tests/node/test_connect_command.py::test_ports_and_names_lead_to_farms",
    "connect --status": "tests/node/test_connect_command.py::test_status_has_farm_leaves_and_counters",
    "connect --stdio": "tests/node/test_connect_command.py::test_standard_streams_use_running_client",
    "debug": "tests/node/test_cli_debug.py::test_bundle_has_node_data_with_summary_of_missing_nodes",
    "doctor": "tests/node/test_cli_doctor.py::test_unreadable_configuration_is_reported_with_remedy",
    "doctor --config": "tests/node/test_cli_doctor.py::test_unreadable_configuration_is_reported_with_remedy",
    "event": "tests/node/test_cli_event.py::test_event_is_sent_with_its_payload",
    "init": FOUNDING,
    "invite list": FOUNDING,
    "invite new": FOUNDING,
    "join": FOUNDING,
    "keys export": "tests/node/test_cli_keys.py::test_current_key_file_is_exported_for_owner_only",
    "keys export --unconfirmed": "tests/node/test_cli_keys.py::test_unconfirmed_key_file_is_exported_with_warning",
    "keys export --replace": "tests/node/test_cli_keys.py::test_current_key_file_is_exported_for_owner_only",
    "keys kafka-user": "tests/node/test_kafka_users.py::test_kafka_user_command_prints_line_without_password",
    "keys kafka-user --name --scope": "tests/node/test_kafka_users.py::"
    "test_kafka_user_command_prints_line_without_password",
    "keys master --spare": "tests/node/test_cli_keys_master.py::test_spare_keys_are_added_with_master_key",
    "keys receive": "tests/node/test_cli_keys_master.py::test_joined_node_receives_its_signing_key",
    "keys master": "tests/node/test_cli_keys_master.py::test_master_makes_keys_for_node_and_invited_nodes",
    "keys new-client": GUIDE,
    "keys new-client --name": GUIDE,
    "keys new-curve": "tests/node/test_zmq_keys.py::test_commands_create_key_and_show_only_public_half",
    "keys new-curve --name": "tests/node/test_zmq_keys.py::test_commands_create_key_and_show_only_public_half",
    "keys new-destination": "tests/node/test_cli_destination_keys.py::"
    "test_new_destination_is_private_file_with_address",
    "keys new-farm": "tests/node/test_cli_commands.py::test_new_farm_key_is_private_file_without_output",
    "keys new-farm --expect": "tests/node/test_cli_commands.py::test_new_farm_key_is_private_file_without_output",
    "keys offline": f"{HERE}::test_advice_about_signing_key_ends_alarm",
    "keys offline --master --out": f"{HERE}::test_advice_about_signing_key_ends_alarm",
    "keys replace": "tests/end_to_end/test_keys.py::test_replaced_keys_invalidate_copied_key_file",
    "keys rotate": "tests/node/test_cli_keys.py::test_rotate_reports_steps_up_to_key_file",
    "keys show-curve": "tests/node/test_zmq_keys.py::test_commands_create_key_and_show_only_public_half",
    "leave": "tests/node/test_cli_commands.py::test_leave_names_the_node",
    "link": READS,
    "lease-set show": "tests/node/test_cli_lease_set.py::test_verified_structure_exits_with_zero",
    "log verify": "tests/node/test_log_verify.py::test_intact_directory_is_reported_with_counts_unchanged",
    "log-time back": DECIDED,
    "monitor": "tests/node/test_cli_watching.py::test_monitor_merges_events_of_all_nodes",
    "node admit-client": GUIDE,
    "node approve": LOST,
    "node clients": "tests/node/test_json_documents.py::test_command_output_keeps_its_keys",
    "node evict": "tests/node/test_cli_leader.py::test_command_to_follower_continues_at_leader",
    "node list": LOST,
    "node remove-client": GUIDE,
    "publish cost": DECIDED,
    "publish exclude": DECIDED,
    "publish force": DECIDED,
    "recover": "tests/end_to_end/test_survivor.py::test_remaining_server_publishes_and_recovers_farm",
    "recover --from": "tests/end_to_end/test_survivor.py::test_remaining_server_publishes_and_recovers_farm",
    "recover --cut-after --from": "tests/node/test_recovering_poisoned.py::"
    "test_unsupported_level_names_entry_to_cut_before",
    "recover --farm-key --from --reset": "tests/node/test_recovering_poisoned.py::"
    "test_eras_are_reset_in_state_keyring_and_key_file",
    "recover --from --state-dir": "tests/node/test_made_before.py::"
    "test_old_backup_becomes_new_cluster_with_shared_state",
    "restore": LOST,
    "router detect": "tests/node/test_router_detect.py::test_settings_are_written_after_one_question",
    "run": "tests/end_to_end/test_run.py::test_single_node_creates_farm_and_stops",
    "run --config": "tests/end_to_end/test_run.py::test_single_node_creates_farm_and_stops",
    "servers remove": f"{HERE}::test_advice_after_loss_is_never_refused",
    "servers restore": DECIDED,
    "submit": GUIDE,
    "top": "tests/node/test_cli_terminals.py::test_top_is_drawn_with_limited_encoding",
    "transfer": "tests/node/test_cli_commands.py::test_transfer_names_new_leader_or_reason",
    "withdraw": "tests/node/test_cli_ends.py::test_withdrawal_is_confirmed_with_name_of_node",
    "up": "tests/end_to_end/test_up.py::test_up_exits_zero_after_complete_publication",
    "up --nodes": "tests/end_to_end/test_up.py::test_up_exits_zero_after_complete_publication",
}
APART: Final = ("help", "kraft", "zmq-raft", "pipeline", "simulate")
"""All pages of `help` are run. The other commands do not act on a farm: they are parsed here and run elsewhere."""
