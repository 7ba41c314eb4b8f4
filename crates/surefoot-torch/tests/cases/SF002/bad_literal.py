import torch
import torchvision.models as models

def run():
    net = models.resnet18()
    if not torch.backends.mps.is_available():
        raise SystemExit("needs a Mac")
    net = net.to("mps")
    net.eval()
    image = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        return net(image)  # expect: SF002
