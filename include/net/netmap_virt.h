/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * netmap_virt.h - registers of netmap's paravirtual devices
 *
 * ptnetmap-memdev maps a netmap region into a guest; ptnet is a network card whose rings are those
 * of a netmap port. Hypervisors and guest drivers include this. Offsets are in bytes, and registers
 * have 32 bits.
 */
#ifndef NETMAP_VIRT_H
#define NETMAP_VIRT_H

/* PCI identity, and the BARs of both devices. */
#define PTNETMAP_MEMDEV_NAME		"ptnetmap-memdev"
#define PTNETMAP_PCI_VENDOR_ID		0x1b36
#define PTNETMAP_PCI_DEVICE_ID		0x000c	/* ptnetmap-memdev */
#define PTNETMAP_PCI_NETIF_ID		0x000d	/* ptnet */
#define PTNETMAP_IO_PCI_BAR		0
#define PTNETMAP_MEM_PCI_BAR		1
#define PTNETMAP_MSIX_PCI_BAR		2

/* ptnetmap-memdev: the region's size and number, then its three pools. */
#define PTNET_MDEV_IO_MEMSIZE_LO	0
#define PTNET_MDEV_IO_MEMSIZE_HI	4
#define PTNET_MDEV_IO_MEMID		8
#define PTNET_MDEV_IO_IF_POOL_OFS	64
#define PTNET_MDEV_IO_IF_POOL_OBJNUM	68
#define PTNET_MDEV_IO_IF_POOL_OBJSZ	72
#define PTNET_MDEV_IO_RING_POOL_OFS	76
#define PTNET_MDEV_IO_RING_POOL_OBJNUM	80
#define PTNET_MDEV_IO_RING_POOL_OBJSZ	84
#define PTNET_MDEV_IO_BUF_POOL_OFS	88
#define PTNET_MDEV_IO_BUF_POOL_OBJNUM	92
#define PTNET_MDEV_IO_BUF_POOL_OBJSZ	96
#define PTNET_MDEV_IO_END		100

/* ptnet. The guest writes the address of each CSB high word first; CSBBAH and CSBBAL are old. */
#define PTNET_IO_PTFEAT			0
#define PTNET_IO_PTCTL			4
#define PTNET_IO_MAC_LO			8
#define PTNET_IO_MAC_HI			12
#define PTNET_IO_CSBBAH			16
#define PTNET_IO_CSBBAL			20
#define PTNET_IO_NIFP_OFS		24
#define PTNET_IO_NUM_TX_RINGS		28
#define PTNET_IO_NUM_RX_RINGS		32
#define PTNET_IO_NUM_TX_SLOTS		36
#define PTNET_IO_NUM_RX_SLOTS		40
#define PTNET_IO_VNET_HDR_LEN		44
#define PTNET_IO_HOSTMEMID		48
#define PTNET_IO_CSB_GH_BAH		52	/* guest to host: atok */
#define PTNET_IO_CSB_GH_BAL		56
#define PTNET_IO_CSB_HG_BAH		60	/* host to guest: ktoa */
#define PTNET_IO_CSB_HG_BAL		64
#define PTNET_IO_END			68
#define PTNET_IO_KICK_BASE		128	/* one register for each ring, TX first */
#define PTNET_IO_MASK			0xff

/* Bits of PTFEAT. */
#define PTNETMAP_F_VNET_HDR		1

/* Commands for PTCTL: start and stop the host's sync loop. */
#define PTNETMAP_PTCTL_CREATE		1
#define PTNETMAP_PTCTL_DELETE		2

#endif /* NETMAP_VIRT_H */
