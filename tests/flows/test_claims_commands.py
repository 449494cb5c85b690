"""`reread claims`: what recomputes is counted, what does not is named and ends with code 1."""

import json
from dataclasses import replace

import pytest

from flows.commands.claims import check_claims, list_claims, show_claim
from storage.errors import SpecError, StageFailed


def test_check_counts_what_recomputes(capsys):
    check_claims()
    out = capsys.readouterr().out
    assert "146 of 146 recompute: 85 of 85 derived values and orderings, 61 of 61 pairs of conflicts" in out
    assert "18 quoted" in out and "22 not computable" in out


def test_check_as_one_document(capsys):
    check_claims(json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == [] and len(found["checks"]) == 146
    assert {one["standing"] for one in found["listed"]} == {"quoted", "implemented", "not computable"}


@pytest.mark.parametrize("as_json", [False, True])
def test_what_does_not_recompute_is_named_and_ends_with_code_1(capsys, monkeypatch, as_json):
    from tasks.claims import check, registry

    claims = [claim if claim.claim_id != "lavo_t6_lavo_r1" else replace(claim, value=40.01)
              for claim in registry.load().claims]
    monkeypatch.setattr(check, "load", lambda folder=None: registry.Registry(claims))
    with pytest.raises(StageFailed, match="d_lavo_sum_vs_vanilla_r1.*gives 5.4, against 4.4") as error:
        check_claims(json=as_json)
    assert error.value.exit_code == 1 and "c_lavo_t6_t9" in str(error.value)
    out = capsys.readouterr().out
    assert "d_lavo_sum_vs_vanilla_r1" in (json.loads(out)["wrong"] if as_json else out.split("WRONG")[1])


def test_list_finds_words_in_any_field(capsys):
    list_claims("mamba squadv2 repetition")
    assert "2 claims" in capsys.readouterr().out
    list_claims("mamba squadv2 repetition", json=True)
    assert {row["printed"] for row in json.loads(capsys.readouterr().out)} == {"5.5", "32.9"}
    with pytest.raises(SpecError, match="no claim holds 'zebra'"):
        list_claims("zebra")


def test_show_tells_all_about_an_id(capsys):
    show_claim("jrt_t5_fa2_n32768_b16", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["claim"]["value"] == 107.8 and "c_jrt_speed_rounding" in found["used_in"]
    show_claim("c_jrt_65_percent")
    assert "57.5" in capsys.readouterr().out
    show_claim("f_jrt_depth")
    assert "quoted" in capsys.readouterr().out
    with pytest.raises(SpecError, match="no claim 'f_jrt_deep'; did you mean f_jrt_depth"):
        show_claim("f_jrt_deep")
