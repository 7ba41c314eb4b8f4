"""The simulation reproduces the small cases that were measured."""
import unittest

import simulate
from simulate import FIGURES

CLOSE = 0.2


class Reproduces(unittest.TestCase):
    def near(self, simulated: float, measured: float, what: str) -> None:
        self.assertLessEqual(
            abs(simulated - measured) / measured, CLOSE, f"{what}: simulated {simulated:.5f}, measured {measured:.5f}"
        )

    def test_shards(self) -> None:
        for case in FIGURES["fingerprint"]["cases"]:
            seconds = simulate.fingerprint_time(FIGURES["fingerprint"]["model"], case["challenges"], case["shards"])
            self.near(seconds, case["seconds"], f"{case['shards']} shards")

    def test_merges(self) -> None:
        for case in FIGURES["merge"]["cases"]:
            seconds = simulate.merge_time(FIGURES["merge"]["model"], case["parts"], case["challenges"])
            self.near(seconds, case["seconds"], f"{case['parts']} parts")

    def test_three_replicas(self) -> None:
        serving = FIGURES["serving"]
        case = serving["case"]
        seen = simulate.serve(case["replicas"], serving["rate_of_a_replica"], case["clients"], simulate.PROXY)
        self.near(seen["rate"], case["rate"], "answers a second")
        self.near(seen["p50"], case["p50"], "p50")


class Behaves(unittest.TestCase):
    def test_a_proxy_bounds_the_rate(self) -> None:
        self.assertLess(simulate.serve(50, 466.0, 1000, 2000.0)["rate"], 2100.0)

    def test_more_shards_than_challenges_are_no_faster(self) -> None:
        model = FIGURES["fingerprint"]["model"]
        self.assertEqual(simulate.fingerprint_time(model, 64, 64), simulate.fingerprint_time(model, 64, 1000))


if __name__ == "__main__":
    unittest.main()
