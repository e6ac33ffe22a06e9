// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Network driver for a port of uvala that is passed through to this guest.
 *
 * The port's memory is a BAR of the device. This driver is the client of the
 * port: it fills transmit slots and empties receive slots there, and talks to
 * the switch by the words in the same memory. uvala_ring.h has their layout,
 * and says which of them each side writes.
 *
 *	xmit ──► slot, head ──► need_kick? ──► doorbell ──► uvala-device ──► switch
 *	poll ◄── slot, hwtail ◄── vector ◄── uvala-device ◄── appl_need_kick? ◄──┘
 *
 * A ring pair has one NAPI context, which both of its vectors schedule. Frames
 * are copied: transmit slots hold no skb, so nothing is to be cleaned there, and
 * a transmit vector comes only after the ring was full.
 *
 * Sleeping. A side that is about to sleep stores a new number in its need-kick
 * word, executes a full barrier, and looks at the other side's index once more.
 * A side that publishes stores its index, executes a full barrier, and loads that
 * word. So one of them sees the other. The barriers are mb(), for the other side
 * runs on another processor even if this kernel has only one, and not virt_mb():
 * that is a locked instruction on x86, which a QEMU that emulates one processor
 * carries out without a barrier.
 *
 * Trust. The switch is trusted as any device with DMA is. Indexes and numbers of
 * buffers are bounded all the same, because the memory is zeroed when the switch
 * ends.
 *
 * The end of the switch. The device lowers the link, increments EPOCH and sends
 * its last vector. The driver then stops and starts its rings: it finds them as
 * new, whichever process is on their other side by then.
 */
#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/rtnetlink.h>
#include <linux/workqueue.h>

#include "ptnet.h"

static u32 ptnet_read(const struct ptnet *pt, u32 reg)
{
	return ioread32(pt->regs + reg);
}

static int ptnet_command(const struct ptnet *pt, u32 command)
{
	u32 err;

	iowrite32(command, pt->regs + PTNET_PTCTL);
	err = ptnet_read(pt, PTNET_PTCTL);
	/* All ones: there is no device any more. */
	return err > MAX_ERRNO ? -ENODEV : -(int)err;
}

/* Interrupts */

static irqreturn_t ptnet_interrupt(int irq, void *arg)
{
	struct ptnet_pair *pair = arg;

	pair->interrupts++;
	napi_schedule_irqoff(&pair->napi);
	return IRQ_HANDLED;
}

static irqreturn_t ptnet_change_interrupt(int irq, void *arg)
{
	struct ptnet *pt = arg;

	schedule_work(&pt->change);
	return IRQ_HANDLED;
}

/* Start and stop */

static int ptnet_up(struct ptnet *pt)
{
	int i, err;

	pt->epoch = ptnet_read(pt, PTNET_EPOCH);
	err = ptnet_command(pt, PTNET_CREATE);
	if (err) {
		netdev_err(pt->dev, "the device does not start its rings: %d\n", err);
		return err;
	}
	WRITE_ONCE(pt->pair[0].rx.atok->sleep_mode, UVALA_SLEEP_DESCRIPTOR);
	for (i = 0; i < pt->pairs; i++) {
		ptnet_take_ring(&pt->pair[i].tx);
		ptnet_take_ring(&pt->pair[i].rx);
		napi_enable(&pt->pair[i].napi);
		/* The first poll arms the ring. */
		local_bh_disable();
		napi_schedule(&pt->pair[i].napi);
		local_bh_enable();
	}
	netif_tx_start_all_queues(pt->dev);
	return 0;
}

static void ptnet_down(struct ptnet *pt)
{
	int i;

	/* First what lets stopped queues run again */
	for (i = 0; i < pt->pairs; i++)
		napi_disable(&pt->pair[i].napi);
	netif_tx_disable(pt->dev);
	for (i = 0; i < pt->pairs; i++) {
		ptnet_disarm(&pt->pair[i].tx);
		ptnet_disarm(&pt->pair[i].rx);
	}
	ptnet_command(pt, PTNET_DELETE);
}

static void ptnet_show_link(struct ptnet *pt)
{
	if (ptnet_read(pt, PTNET_STATUS) & PTNET_S_LINK)
		netif_carrier_on(pt->dev);
	else
		netif_carrier_off(pt->dev);
}

/* The link has changed, or the rings are new ones. */
static void ptnet_change(struct work_struct *work)
{
	struct ptnet *pt = container_of(work, struct ptnet, change);

	rtnl_lock();
	if (netif_running(pt->dev) && (!pt->is_up || ptnet_read(pt, PTNET_EPOCH) != pt->epoch)) {
		netif_carrier_off(pt->dev);
		if (pt->is_up)
			ptnet_down(pt);
		pt->is_up = !ptnet_up(pt);
	}
	if (pt->is_up)
		ptnet_show_link(pt);
	rtnl_unlock();
}

static int ptnet_open(struct net_device *dev)
{
	struct ptnet *pt = netdev_priv(dev);
	int err = ptnet_up(pt);

	pt->is_up = !err;
	if (!err)
		ptnet_show_link(pt);
	return err;
}

static int ptnet_stop(struct net_device *dev)
{
	struct ptnet *pt = netdev_priv(dev);

	if (pt->is_up)
		ptnet_down(pt);
	pt->is_up = false;
	netif_carrier_off(dev);
	return 0;
}

static const struct net_device_ops ptnet_ops = {
	.ndo_open = ptnet_open,
	.ndo_stop = ptnet_stop,
	.ndo_start_xmit = ptnet_xmit,
	.ndo_get_stats64 = ptnet_get_stats64,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

/* The device */

static int ptnet_map(struct ptnet *pt)
{
	struct pci_dev *pdev = pt->pdev;
	resource_size_t start = pci_resource_start(pdev, PTNET_BAR_REGION);

	pt->doorbells = pci_iomap_range(pdev, PTNET_BAR_VECTORS, PTNET_DOORBELLS, PAGE_SIZE);
	if (!pt->doorbells || !start)
		return -ENODEV;
	pt->region = memremap(start, pt->region_len, MEMREMAP_WB);
	return pt->region ? 0 : -ENOMEM;
}

static void ptnet_unmap(struct ptnet *pt)
{
	if (pt->region)
		memunmap(pt->region);
	if (pt->doorbells)
		pci_iounmap(pt->pdev, pt->doorbells);
}

/* Whether size bytes at an offset that the device told lie in the region. */
static bool ptnet_holds(const struct ptnet *pt, u64 at, u64 size)
{
	return at <= pt->region_len && size <= pt->region_len - at && IS_ALIGNED(at, 8);
}

static int ptnet_find_ring(struct ptnet *pt, struct ptnet_ring *r, u16 number, s64 at, u32 slots)
{
	u32 atok = ptnet_read(pt, PTNET_ATOK_OFS) + number * sizeof(*r->atok);
	u32 ktoa = ptnet_read(pt, PTNET_KTOA_OFS) + number * sizeof(*r->ktoa);

	if (slots < 2 || at < 0 || !ptnet_holds(pt, atok, sizeof(*r->atok)) ||
	    !ptnet_holds(pt, ktoa, sizeof(*r->ktoa)) ||
	    !ptnet_holds(pt, at, sizeof(*r->ring) + (u64)slots * sizeof(struct uvala_slot)))
		return -EINVAL;
	r->ring = pt->region + at;
	r->atok = pt->region + atok;
	r->ktoa = pt->region + ktoa;
	r->slots = slots;
	r->doorbell = pt->doorbells + 4 * number;
	u64_stats_init(&r->sync);
	return 0;
}

/* Where everything is does not change while this device has a driver. */
static int ptnet_find(struct ptnet *pt)
{
	u32 nifp_ofs = ptnet_read(pt, PTNET_NIFP_OFS);
	u32 bell_ofs = ptnet_read(pt, PTNET_BELL_OFS);
	u32 tx_slots = ptnet_read(pt, PTNET_NUM_TX_SLOTS);
	u32 rx_slots = ptnet_read(pt, PTNET_NUM_RX_SLOTS);
	u32 pool_ofs = ptnet_read(pt, PTNET_BUF_OFS);
	struct uvala_if *nifp = pt->region + nifp_ofs;
	int i, err = 0;

	/* Behind the list of rings are the two of the host's rings. */
	if (!ptnet_holds(pt, nifp_ofs, sizeof(*nifp) + 8 * (pt->tx_rings + pt->rx_rings + 2)) ||
	    !ptnet_holds(pt, bell_ofs, sizeof(*pt->bell)))
		return -EINVAL;
	pt->stride = ptnet_read(pt, PTNET_BUF_SIZE);
	pt->bufs = ptnet_read(pt, PTNET_NUM_BUFS);
	if (pt->stride < 128 || !ptnet_holds(pt, pool_ofs, (u64)pt->bufs * pt->stride))
		return -EINVAL;
	pt->bell = pt->region + bell_ofs;
	pt->pool = pt->region + pool_ofs;
	for (i = 0; i < pt->pairs && !err; i++) {
		const s64 *ofs = (const s64 *)(nifp + 1);
		struct ptnet_pair *pair = &pt->pair[i];

		err = ptnet_find_ring(pt, &pair->tx, i, nifp_ofs + READ_ONCE(ofs[i]), tx_slots);
		if (!err)
			err = ptnet_find_ring(pt, &pair->rx, pt->tx_rings + i,
					      nifp_ofs + READ_ONCE(ofs[pt->tx_rings + 1 + i]),
					      rx_slots);
	}
	return err;
}

/* Vectors belong to the rings in order; the last one to the device. */
static int ptnet_request_irqs(struct ptnet *pt)
{
	int n = pt->tx_rings + pt->rx_rings, err, i;

	err = pci_alloc_irq_vectors(pt->pdev, n + 1, n + 1, PCI_IRQ_MSIX);
	if (err < 0)
		return err;
	for (i = 0; i < pt->pairs; i++) {
		struct ptnet_pair *pair = &pt->pair[i];

		err = pci_request_irq(pt->pdev, i, ptnet_interrupt, NULL, pair,
				      PTNET_NAME "-tx%d", i);
		if (err)
			goto undo;
		err = pci_request_irq(pt->pdev, pt->tx_rings + i, ptnet_interrupt, NULL, pair,
				      PTNET_NAME "-rx%d", i);
		if (err) {
			pci_free_irq(pt->pdev, i, pair);
			goto undo;
		}
	}
	err = pci_request_irq(pt->pdev, n, ptnet_change_interrupt, NULL, pt, PTNET_NAME);
	if (!err)
		return 0;
undo:
	while (--i >= 0) {
		pci_free_irq(pt->pdev, i, &pt->pair[i]);
		pci_free_irq(pt->pdev, pt->tx_rings + i, &pt->pair[i]);
	}
	pci_free_irq_vectors(pt->pdev);
	return err;
}

static void ptnet_free_change(struct ptnet *pt)
{
	pci_free_irq(pt->pdev, pt->tx_rings + pt->rx_rings, pt);
	cancel_work_sync(&pt->change);
}

static void ptnet_free_irqs(struct ptnet *pt)
{
	int i;

	for (i = 0; i < pt->pairs; i++) {
		pci_free_irq(pt->pdev, i, &pt->pair[i]);
		pci_free_irq(pt->pdev, pt->tx_rings + i, &pt->pair[i]);
	}
	pci_free_irq_vectors(pt->pdev);
}

static void ptnet_set_address(struct net_device *dev, u32 high, u32 low)
{
	u8 address[ETH_ALEN] = { high >> 8, high, low >> 24, low >> 16, low >> 8, low };

	if (is_valid_ether_addr(address))
		eth_hw_addr_set(dev, address);
	else
		eth_hw_addr_random(dev);
}

static int ptnet_register(struct ptnet *pt)
{
	struct net_device *dev = pt->dev;
	int i;

	ptnet_set_address(dev, ptnet_read(pt, PTNET_MAC_HI), ptnet_read(pt, PTNET_MAC_LO));
	dev->netdev_ops = &ptnet_ops;
	dev->ethtool_ops = &ptnet_ethtool_ops;
	/* The copy into a slot makes the checksum and joins the pieces. */
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM;
	dev->features = dev->hw_features | NETIF_F_HIGHDMA;
	dev->vlan_features = dev->features;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = pt->stride - ETH_HLEN - 4;
	for (i = 0; i < pt->pairs; i++) {
		pt->pair[i].pt = pt;
		pt->pair[i].index = i;
		netif_napi_add(dev, &pt->pair[i].napi, ptnet_poll);
	}
	netif_carrier_off(dev);
	return register_netdev(dev);
}

/* Reads what the network device is made of. */
static int ptnet_ask(struct pci_dev *pdev, void __iomem *regs, u16 *tx_rings, u16 *rx_rings)
{
	iowrite32(PTNET_F_REGION, regs + PTNET_PTFEAT);
	if (!(ioread32(regs + PTNET_PTFEAT) & PTNET_F_REGION)) {
		dev_err(&pdev->dev, "a ptnet of other software: use netmap's driver\n");
		return -ENODEV;
	}
	*tx_rings = ioread32(regs + PTNET_NUM_TX_RINGS);
	*rx_rings = ioread32(regs + PTNET_NUM_RX_RINGS);
	return *tx_rings && *rx_rings ? 0 : -ENODEV;
}

static int ptnet_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	u16 tx_rings, rx_rings, pairs;
	struct net_device *dev;
	void __iomem *regs;
	struct ptnet *pt;
	int err;

	err = pcim_enable_device(pdev);
	if (!err)
		err = pci_request_regions(pdev, PTNET_NAME);
	if (err)
		return err;
	pci_set_master(pdev);
	regs = pci_iomap(pdev, PTNET_BAR_REGISTERS, 0);
	if (!regs) {
		err = -ENODEV;
		goto release;
	}
	err = ptnet_ask(pdev, regs, &tx_rings, &rx_rings);
	if (err)
		goto unmap_regs;
	pairs = min(tx_rings, rx_rings);
	err = -ENOMEM;
	dev = alloc_etherdev_mqs(struct_size(pt, pair, pairs), pairs, pairs);
	if (!dev)
		goto unmap_regs;
	SET_NETDEV_DEV(dev, &pdev->dev);
	pt = netdev_priv(dev);
	*pt = (struct ptnet) {
		.dev = dev, .pdev = pdev, .regs = regs, .pairs = pairs,
		.tx_rings = tx_rings, .rx_rings = rx_rings,
	};
	pt->region_len = ptnet_read(pt, PTNET_REGION_LEN);
	INIT_WORK(&pt->change, ptnet_change);
	pci_set_drvdata(pdev, pt);
	err = ptnet_map(pt);
	/* If the switch has ended, the device makes the rings anew at their start. */
	if (!err) {
		/* An earlier kernel may have left them running. */
		ptnet_command(pt, PTNET_DELETE);
		err = ptnet_command(pt, PTNET_CREATE);
	}
	if (err)
		goto unmap;
	err = ptnet_find(pt);
	ptnet_command(pt, PTNET_DELETE);
	if (err)
		goto unmap;
	err = ptnet_request_irqs(pt);
	if (err)
		goto unmap;
	err = ptnet_register(pt);
	if (!err)
		return 0;
	ptnet_free_change(pt);
	ptnet_free_irqs(pt);
unmap:
	ptnet_unmap(pt);
	free_netdev(dev);
unmap_regs:
	pci_iounmap(pdev, regs);
release:
	pci_release_regions(pdev);
	dev_err(&pdev->dev, "no network device: %d\n", err);
	return err;
}

static void ptnet_remove(struct pci_dev *pdev)
{
	struct ptnet *pt = pci_get_drvdata(pdev);

	/* First what touches the carrier of the network device */
	ptnet_free_change(pt);
	unregister_netdev(pt->dev);
	ptnet_free_irqs(pt);
	ptnet_unmap(pt);
	pci_iounmap(pdev, pt->regs);
	free_netdev(pt->dev);
	pci_release_regions(pdev);
}

static void ptnet_shutdown(struct pci_dev *pdev)
{
	struct ptnet *pt = pci_get_drvdata(pdev);

	rtnl_lock();
	dev_close(pt->dev);
	rtnl_unlock();
	pci_clear_master(pdev);
}

static const struct pci_device_id ptnet_ids[] = {
	{ PCI_DEVICE_SUB(PTNET_VENDOR, PTNET_DEVICE, PTNET_VENDOR, PTNET_SUBSYSTEM) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ptnet_ids);

static struct pci_driver ptnet_driver = {
	.name = PTNET_NAME,
	.id_table = ptnet_ids,
	.probe = ptnet_probe,
	.remove = ptnet_remove,
	.shutdown = ptnet_shutdown,
};
module_pci_driver(ptnet_driver);

MODULE_DESCRIPTION("Network driver for ports of uvala");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
