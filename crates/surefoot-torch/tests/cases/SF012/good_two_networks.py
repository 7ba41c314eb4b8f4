import torch

def gan(netG, netD, optG, optD, loader, criterion):
    for real in loader:
        netD.zero_grad()
        errD = criterion(netD(real), 1)
        errD.backward()
        optD.step()
        netG.zero_grad()
        errG = criterion(netD(netG(real)), 0)
        errG.backward()
        optG.step()
