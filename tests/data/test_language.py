"""The language of texts."""

from __future__ import annotations

import pytest

from tightfit.data.language import detect_language


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["房间很干净，早餐丰富", "前台服务态度差", "WiFi 很慢"], "zh"),
        (["部屋はとてもきれいでした", "朝食が美味しかったです"], "ja"),
        (["방이 정말 깨끗했어요", "직원들이 친절했습니다"], "ko"),
        (["The room was clean and quiet", "It was a mistake to book this hotel"], "en"),
        (["Das Zimmer war sauber", "Le petit déjeuner était excellent"], None),
        (["The room was clean", "房间很干净"], None),
        (["1234", ""], None),
        ([], None),
    ],
)
def test_the_language_is_told_by_most_texts(texts: list[str], language: str | None) -> None:
    assert detect_language(texts) == language
