/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The ptnet device of uvala-device, as its driver sees it. The registers up to
 * 0x40 are netmap's (net/netmap_virt.h); those behind them are valid once the
 * device has acknowledged PTNET_F_REGION.
 */
#ifndef UVALA_PTNET_H
#define UVALA_PTNET_H

#define PTNET_VENDOR		0x1b36
#define PTNET_DEVICE		0x000d
#define PTNET_SUBSYSTEM		0x0001

/* Base address registers */
#define PTNET_BAR_REGISTERS	0	/* I/O ports */
#define PTNET_BAR_VECTORS	2	/* MSI-X; doorbells at PTNET_DOORBELLS */
#define PTNET_BAR_REGION	4	/* the port's memory */

/* Registers, 32 bits each */
#define PTNET_PTFEAT		0x00
#define PTNET_PTCTL		0x04
#define PTNET_MAC_LO		0x08
#define PTNET_MAC_HI		0x0c
#define PTNET_NIFP_OFS		0x18
#define PTNET_NUM_TX_RINGS	0x1c
#define PTNET_NUM_RX_RINGS	0x20
#define PTNET_NUM_TX_SLOTS	0x24
#define PTNET_NUM_RX_SLOTS	0x28
#define PTNET_STATUS		0x44
#define PTNET_EPOCH		0x48
#define PTNET_REGION_LEN	0x4c
#define PTNET_BELL_OFS		0x50
#define PTNET_ATOK_OFS		0x54
#define PTNET_KTOA_OFS		0x58
#define PTNET_NUM_BUFS		0x5c
#define PTNET_BUF_OFS		0x60
#define PTNET_BUF_SIZE		0x64

/* PTFEAT */
#define PTNET_F_REGION		BIT(31)	/* the CSB is the one in the region */

/* PTCTL; reads as the error number of the last command */
#define PTNET_CREATE		1
#define PTNET_DELETE		2

/* STATUS */
#define PTNET_S_LINK		BIT(0)

/* In PTNET_BAR_VECTORS, a word for each ring, transmit rings first */
#define PTNET_DOORBELLS		0x1000

#endif
