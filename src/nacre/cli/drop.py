"""`nacre drop`: takes the last task out of a store."""

from __future__ import annotations

from nacre.cli.options import Store, TaskName


def drop(store: Store, task: TaskName, /) -> None:
    """Drop the task that was learnt last; the tasks before it answer as they did.

    An earlier one cannot be dropped: the tasks after it stand on its weights. It is gone for good once it is dropped;
    copy the folder first if in doubt.

    Args:
        store: The folder of the store.
        task: The task's name.
    """
    from nacre.space import drop as drop_task

    freed = drop_task(store, task)
    print(f"{store}: dropped {task!r}, {freed:,} bytes freed")
