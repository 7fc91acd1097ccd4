"""When requests arrive: two recorded hours of language model services, as requests per half minute.

Counted from the Azure LLM inference trace 2023 (github.com/Azure/AzurePublicDataset, CC BY 4.0; P. Patel and others, Splitwise,
ISCA 2024): `code` is a service for programmers, whose requests come in bursts, `conversation` one for chats.
"""

from __future__ import annotations

from random import Random

RECORDED = {
    "code": """
        17 46 0 0 0 0 201 330 59 128 81 49 15 0 42 0 0 38 107 369 327 94 63 0 0 0 0 0 504 128 268 31 0 0 0 20 237 159 32
        283 116 0 72 6 123 183 113 334 149 103 34 0 24 104 111 0 253 153 92 142 118 0 93 76 25 105 169 137 62 96 0 0 166
        173 3 52 285 0 49 142 0 0 0 28 102 103 245 0 22 77 0 0 0 0 3 29 0 0 0 0 0 0 97 0 106 106 0 22 0 32 30 83 0 47 196
    """,
    "conversation": """
        59 132 141 124 157 172 170 183 152 155 146 127 131 137 130 131 164 158 146 152 135 166 145 157 171 174 160 166
        134 149 140 139 133 147 166 142 154 189 178 173 160 191 159 184 203 205 203 193 193 193 222 176 207 225 225 255
        252 224 230 223 218 230 271 236 231 207 220 193 204 219 182 236 239 226 161 150 178 151 153 163 172 161 186 169
        190 129 182 178 153 181 174 201 183 147 129 120 113 108 123 126 132 133 132 148 134 122 137 117 131 111 138 122
        128 118 113 112 37
    """,
}


def arrival_times(pattern: str, seconds: float, rate: float, seed: int = 7) -> list[float]:
    """Return when requests arrive, in order, if the recorded hour passes in `seconds` with `rate` requests a second on average."""
    counts = [int(count) for count in RECORDED[pattern].split()]
    random, interval = Random(seed), seconds / len(counts)
    draws = random.choices(range(len(counts)), weights=counts, k=round(seconds * rate))
    return sorted((n + random.random()) * interval for n in draws)
