"""Which tests of what every flavour promises ask for which feature: by file, or by the name of the test.

`pytest --without FEATURE` skips the tests that ask for the feature; all others pass without it. A test asks
for `Waiting` if its calls share a batch only because a window gathers them.
"""

from __future__ import annotations

ASKS_FOR: dict[str, tuple[str, ...]] = {
    "FitsMemory": (
        "test_out_of_memory.py",
        "test_memory_that_runs_out_does_not_run_them_again_either",
        "test_out_of_memory_before_the_first_piece_divides_the_batch",
    ),
    "Isolation": (
        "test_batch_fault.py",
        "test_isolate_errors.py",
        "test_wrong_results.py",
        "test_a_call_that_runs_ahead_amid_an_outage_holds_up_the_others_until_its_end",
        "test_a_list_raises_the_error_of_its_first_item_that_fails",
        "test_an_error_that_cannot_be_copied_arrives_itself_wherever_there_is_one_caller",
        "test_an_item_that_fails_before_the_first_piece_fails_alone",
        "test_as_many_batches_run_at_once_as_may_while_that_changes",
        "test_isolation_can_be_switched_on_while_a_batch_runs",
        "test_items_that_are_no_such_things_are_run_again",
        "test_one_such_item_among_others_is_enough",
        "test_return_exceptions_leaves_them_in_their_places",
    ),
    "Waiting": (
        "test_batch_fault.py",
        "test_isolate_errors.py",
        "test_streams_errors.py",
        "test_streams_pieces.py",
        "test_used_up_items.py",
        "test_wrong_results.py",
        "test_a_burst_that_fits_one_batch_goes_as_one",
        "test_a_consumer_that_left_keeps_no_pieces",
        "test_a_full_batch_starts_before_its_window_ends",
        "test_a_full_queue_does_not_wait_for_company",
        "test_a_key_in_its_window_holds_up_no_other_and_is_not_held_up",
        "test_a_refused_call_does_not_keep_others_from_a_full_batch",
        "test_a_snapshot_accounts_for_every_item_while_batches_run",
        "test_a_stream_knows_its_batch",
        "test_an_error_that_cannot_be_copied_and_is_returned_for_one_item_arrives_itself",
        "test_an_error_that_cannot_be_copied_arrives_at_several_callers_as_a_batch_error",
        "test_an_error_that_cannot_be_copied_is_not_shared_with_a_list",
        "test_arrays_are_grouped_by_call",
        "test_each_key_fills_batches_of_its_own",
        "test_of_a_lone_caller_nothing_is_said_that_only_company_tells",
        "test_printed_stats_are_a_table",
        "test_queued_items_follow_at_the_next_batch",
        "test_streams_are_grouped",
        "test_the_errors_of_numpy_and_pydantic_come_as_they_were",
        "test_when_nobody_is_left_the_generator_is_closed",
    ),
    "LearnedLengths": ("test_stats_say_what_was_padded_and_how_batches_were_chosen",),
    "WithDeadlines": ("test_a_deadline_shorter_than_the_window_is_met",),
    "BestSizes": (),
    "Backlog": (
        "test_expected_wait.py",
        "test_a_call_that_cannot_be_in_time_is_refused_and_told_when_to_come_back",
        "test_a_finalizer_may_ask_the_batcher_in_the_middle_of_each_step",
        "test_a_refusal_for_another_tenant_counts_once_and_says_when_to_come_back",
        "test_every_call_has_the_deadline_of_the_decorator_unless_it_says_otherwise",
        "test_the_expected_wait_is_not_known_at_first_and_grows_with_what_waits",
    ),
}
