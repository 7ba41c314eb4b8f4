import asyncio
from functools import partial
from multiprocessing.pool import ThreadPool

import torch


class Service:
    def __init__(self, net):
        self.device = torch.device("mps")
        self.model = net.to(self.device)
        self.pool = ThreadPool(8)

    def forward(self, x):
        return self.model(x.to(self.device))

    def predict(self, x):
        return self.forward(x)

    async def answer(self, x):
        return await asyncio.to_thread(self.predict, x)  # expect: SF030

    def answers(self, xs):
        return self.pool.map(partial(self.predict), xs)  # expect: SF030
