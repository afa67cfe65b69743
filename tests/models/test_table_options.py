"""What docs/row_policies.md shows is what the `model` and `train` sections take."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from embershard.embedding.table_config import Capacity, ColumnBlock, MinCount, MinL2, Score, Ttl
from embershard.models.config import ModelConfig, TrainConfig

PAGE = Path(__file__).parents[2] / "docs" / "row_policies.md"


def test_yaml_example_makes_tables_that_keep_clicks() -> None:
    found = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    sections = YAML(typ="safe").load(found.group(1))
    model = TypeAdapter(ModelConfig).validate_python(sections["model"])
    table = model.tables.table("ad", "ad", [ColumnBlock(dim=4)])
    assert table.admission == MinCount(count=3)
    assert [type(policy) for policy in table.eviction] == [Score, Capacity]
    assert table.keeps_clicks
    assert TrainConfig.model_validate(sections["train"]).evict_every == 10_000


def test_every_policy_of_a_table_is_on_the_page() -> None:
    kinds = [kind.model_fields["kind"].default for kind in (Ttl, MinL2, Score, Capacity)]
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{kind}` |" in text for kind in kinds)
