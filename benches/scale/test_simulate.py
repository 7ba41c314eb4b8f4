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


    def training(self, cases: list[dict], network: simulate.Network) -> None:
        training = FIGURES["training"]
        self.assertTrue(cases)
        for case in cases:
            job = simulate.measured_job(training["ranks"][case["workload"]])
            sharing = max(1.0, case["ranks"] / training["processors"])
            step = simulate.training_step(job, case["ranks"], network, sharing)
            self.near(step, case["step"], f"{case['workload']}, {case['ranks']} ranks, {case['network']}")

    def test_ranks_on_one_machine(self) -> None:
        training = FIGURES["training"]
        two = simulate.two_ranks(training["ranks"])
        self.training(two + training["oversubscribed"], simulate.measured_network(two, training["ranks"], simulate.SHARED_MEMORY))

    def test_hosts(self) -> None:
        training = FIGURES["training"]
        cases = training["hosts"]
        self.assertEqual({case["ranks"] for case in cases}, {2, 4})
        self.training(cases, simulate.measured_network(cases, training["ranks"], training["latency_of_hosts"]))


class Behaves(unittest.TestCase):
    def test_averaging_sends_twice_what_is_not_ones_own(self) -> None:
        network = simulate.Network(bandwidth=1e6, latency=0.0)
        self.assertEqual(simulate.averaging(4_000_000, 1, network), 0.0)
        self.assertEqual(simulate.averaging(4_000_000, 2, network), 4.0)
        self.assertEqual(simulate.averaging(4_000_000, 4, network), 6.0)
        slow = simulate.Network(bandwidth=1e30, latency=0.5)
        self.assertAlmostEqual(simulate.averaging(4_000_000, 4, slow), 3.0)

    def test_small_steps_of_many_machines_are_bound_by_latency(self) -> None:
        job = simulate.Job(gradients=1000, batch=1, sample=1e-3, fixed=0.0, update=0.0)
        network = simulate.Network(bandwidth=1e9, latency=1e-4)
        shares = [simulate.efficiency(job, machines, network)[1] for machines in (1, 8, 64, 1000)]
        self.assertEqual(shares[0], 1.0)
        self.assertEqual(shares, sorted(shares, reverse=True))
        self.assertLess(shares[3], 0.01)

    def test_a_proxy_bounds_the_rate(self) -> None:
        self.assertLess(simulate.serve(50, 466.0, 1000, 2000.0)["rate"], 2100.0)

    def test_more_shards_than_challenges_are_no_faster(self) -> None:
        model = FIGURES["fingerprint"]["model"]
        self.assertEqual(simulate.fingerprint_time(model, 64, 64), simulate.fingerprint_time(model, 64, 1000))


if __name__ == "__main__":
    unittest.main()
