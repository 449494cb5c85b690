"""The report as one page: whole in itself, and nothing in it is taken for markup."""

import base64

from tasks.reporting.html import page
from tasks.reporting.tables import Table

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def test_everything_is_inside(tmp_path):
    (tmp_path / "recall.png").write_bytes(PNG)
    (tmp_path.parent / "secret.png").write_bytes(PNG)
    table = Table("t", "Recall: `4|8`", ["task", "disjoint / 4|8"], [["a <b>", f"0.{n}"] for n in range(9)], note="a & b")
    text = "\n".join(["# Study `x`", "", "<script>alert(1)</script>", "", "* one", "", "![recall](recall.png)", "",
                      "![gone](../secret.png)", "", "## Tables", "", table.markdown(), "", "## Last", ""])
    (tmp_path / "report.md").write_text(text, encoding="utf-8")
    found = page(tmp_path, "Study <x>", {"train <jrt>": "http://127.0.0.1:1/#/experiments/1/runs/2"})
    assert found.count("data:image/png;base64,") == 1 and 'src="../secret.png"' in found
    assert "<title>Study &lt;x&gt;</title>" in found and "&lt;script&gt;alert(1)" in found and "a &lt;b&gt;" in found
    assert found.count("<tr>") == 10 and "<th>disjoint / 4|8</th>" in found and 'placeholder="filter 9 rows"' in found
    assert '<a href="http://127.0.0.1:1/#/experiments/1/runs/2"' in found and "train &lt;jrt&gt;" in found
    assert all(f'<a href="#{name}"' in found for name in ("s1", "s2", "s3", "runs"))
    assert "http" not in found.replace("http://127.0.0.1:1", "")


def test_a_page_without_runs_has_no_list_of_them(tmp_path):
    (tmp_path / "report.md").write_text("# A\n", encoding="utf-8")
    assert "Runs in MLflow" not in page(tmp_path, "A")


def test_a_plot_with_another_alphabet_in_its_name_is_inside(tmp_path):
    (tmp_path / "größe+1.png").write_bytes(PNG)
    (tmp_path / "report.md").write_text("# A\n\n![size](größe+1.png)\n", encoding="utf-8")
    assert "data:image/png;base64," in page(tmp_path, "A")
