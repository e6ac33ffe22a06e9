// SPDX-License-Identifier: MIT OR Apache-2.0
/* Interfaces: what vale-ctl asks for, and which port each name finds. */

#include "check.h"

static struct nmreq_vale_newif sizes(int tx_slots, int rx_slots, int tx_rings, int rx_rings)
{
	struct nmreq_vale_newif newif;

	memset(&newif, 0, sizeof(newif));
	newif.nr_tx_slots = (uint32_t)tx_slots, newif.nr_rx_slots = (uint32_t)rx_slots;
	newif.nr_tx_rings = (uint16_t)tx_rings, newif.nr_rx_rings = (uint16_t)rx_rings;
	return newif;
}

static int make(int fd, const char *name)
{
	struct nmreq_vale_newif newif = sizes(0, 0, 0, 0);

	return request(fd, NETMAP_REQ_VALE_NEWIF, name, &newif, NULL);
}

static int delete(int fd, const char *name)
{
	return request(fd, NETMAP_REQ_VALE_DELIF, name, NULL, NULL);
}

static int attach(int fd, const char *name)
{
	struct nmreq_vale_attach attach;

	memset(&attach, 0, sizeof(attach));
	attach.reg.nr_mode = NR_REG_ALL_NIC;
	attach.port_index = 77;
	if (request(fd, NETMAP_REQ_VALE_ATTACH, name, &attach, NULL))
		return -1;
	CHECK(attach.port_index < 77);
	return 0;
}

static int detach(int fd, const char *name)
{
	struct nmreq_vale_detach detach = { 77, 0 };

	return request(fd, NETMAP_REQ_VALE_DETACH, name, &detach, NULL);
}

/* Binds, and says how that went. */
static int bind_to(const char *name)
{
	struct nmreq_register reg;
	int fd = device(), error;

	memset(&reg, 0, sizeof(reg));
	reg.nr_mode = NR_REG_ALL_NIC;
	error = request(fd, NETMAP_REQ_REGISTER, name, &reg, NULL) ? errno : 0;
	close(fd);
	return error;
}

static void made_and_deleted(void)
{
	struct nmreq_vale_newif newif = sizes(64, 128, 2, 3);
	struct nmreq_port_info_get info;
	struct port port, pipe;
	int fd = device();

	CHECK(request(fd, NETMAP_REQ_VALE_NEWIF, "per0", &newif, NULL) == 0);
	CHECK(newif.nr_tx_slots == 64 && newif.nr_rx_slots == 128);
	CHECK(newif.nr_tx_rings == 2 && newif.nr_rx_rings == 3 && newif.nr_mem_id > 1);
	FAILS(EEXIST, make(fd, "per0"));
	memset(&info, 0, sizeof(info));
	CHECK(request(fd, NETMAP_REQ_PORT_INFO_GET, "per0", &info, NULL) == 0);
	CHECK(info.nr_mem_id == newif.nr_mem_id && info.nr_tx_rings == 2);
	/* The interface outlives its creator. */
	close(fd);
	port = open_port("per0", 0), pipe = open_port("per0{12", 0);
	CHECK(!strcmp(port.nifp->ni_name, "per0") && !strcmp(pipe.nifp->ni_name, "per0{12"));
	close(port.fd), close(pipe.fd);
	fd = device();
	CHECK(delete(fd, "per0") == 0);
	FAILS(ENXIO, delete(fd, "per0"));
	CHECK(bind_to("per0") == ENXIO);
}

static void names(void)
{
	struct nmreq_vale_newif newif = sizes(0, 0, 0, 0);
	int fd = device();

	FAILS(EINVAL, make(fd, "vale0:per1"));
	FAILS(EINVAL, make(fd, "valeper1"));
	FAILS(EINVAL, make(fd, "sixteen_letters_"));
	FAILS(EINVAL, make(fd, ""));
	FAILS(EINVAL, make(fd, "per1{1"));
	FAILS(EEXIST, make(fd, "lo"));
	newif.nr_mem_id = 60000;
	FAILS(EINVAL, request(fd, NETMAP_REQ_VALE_NEWIF, "per1", &newif, NULL));
	FAILS(EINVAL, attach(fd, "per1"));
	FAILS(EINVAL, attach(fd, "vale0:per1"));
	FAILS(EINVAL, detach(fd, "per1"));
	FAILS(ENXIO, detach(fd, "vale0:per1"));
	FAILS(ENXIO, delete(fd, "vale0:per1"));
}

/* What is no interface of the system has no host rings. */
static void one_side(void)
{
	static const char *const names[] = { "perA", "perA{1", "vale0:a", "vale0:a{1" };
	static const uint32_t modes[] = { NR_REG_SW, NR_REG_ONE_SW, NR_REG_NIC_SW };
	struct nmreq_register reg;
	int fd = device();
	size_t i, j;

	CHECK(make(fd, "perA") == 0);
	for (i = 0; i < sizeof(names) / sizeof(*names); i++)
		for (j = 0; j < sizeof(modes) / sizeof(*modes); j++) {
			memset(&reg, 0, sizeof(reg));
			reg.nr_mode = modes[j];
			FAILS(EINVAL, request(fd, NETMAP_REQ_REGISTER, names[i], &reg, NULL));
		}
	CHECK(delete(fd, "perA") == 0);
	memset(&reg, 0, sizeof(reg));
	reg.nr_mode = NR_REG_NIC_SW;
	FAILS(ENXIO, request(fd, NETMAP_REQ_REGISTER, "nosuchif9", &reg, NULL));
}

static void attached_and_detached(void)
{
	int fd = device();

	CHECK(make(fd, "per2") == 0);
	CHECK(bind_to("vale0:per2") == EINVAL);
	CHECK(attach(fd, "vale0:per2") == 0);
	FAILS(EBUSY, attach(fd, "vale0:per2"));
	FAILS(EBUSY, delete(fd, "per2"));
	CHECK(bind_to("vale0:per2") == 0 && bind_to("per2") == 0);
	FAILS(ENXIO, detach(fd, "vale1:per2"));
	CHECK(detach(fd, "vale0:per2") == 0);
	FAILS(ENXIO, detach(fd, "vale0:per2"));
	CHECK(delete(fd, "per2") == 0);
}

static void held(void)
{
	struct port port;
	int fd = device();

	CHECK(make(fd, "per3") == 0);
	port = open_port("per3", 0);
	FAILS(EBUSY, attach(fd, "vale0:per3"));
	FAILS(EBUSY, delete(fd, "per3"));
	close(port.fd);
	CHECK(attach(fd, "vale0:per3") == 0);
	port = open_port("per3{x", 0);
	FAILS(EBUSY, detach(fd, "vale0:per3"));
	close(port.fd);
	CHECK(detach(fd, "vale0:per3") == 0 && delete(fd, "per3") == 0);
}

/* A program that holds an interface keeps it when it leaves its switch. */
static void taken_along(void)
{
	struct port a, b, c;
	int fd = device(), come;

	CHECK(make(fd, "perB") == 0 && attach(fd, "vale0:perB") == 0);
	a = open_port("vale0:perB", 0), b = open_port("vale0:b", 0);
	send_frame(&a, 60, 1), expect_frame(&b, 60, 1);
	CHECK(detach(fd, "vale0:perB") == 0);
	send_frame(&a, 60, 2), send_frame(&b, 60, 3);
	CHECK(poll_one(b.fd, POLLIN, 50, &come) == 0);
	CHECK(poll_one(a.fd, POLLIN, 50, &come) == 0);
	/* The port is still the same, and must be released before it joins a switch again. */
	c = open_port("perB", 0);
	CHECK(c.reg.nr_mem_id == a.reg.nr_mem_id);
	FAILS(EBUSY, attach(fd, "vale0:perB"));
	FAILS(EBUSY, delete(fd, "perB"));
	close(a.fd), close(c.fd);
	CHECK(attach(fd, "vale0:perB") == 0);
	a = open_port("perB", 0);
	send_frame(&b, 60, 4), expect_frame(&a, 60, 4);
	close(a.fd), close(b.fd);
	CHECK(detach(fd, "vale0:perB") == 0 && delete(fd, "perB") == 0);
}

/* In two switches an interface is a cable between them. */
static void in_two_switches(void)
{
	struct port a, b;
	int fd = device(), i;

	CHECK(make(fd, "perC") == 0 && attach(fd, "vale0:perC") == 0);
	a = open_port("perC", 0);
	FAILS(EBUSY, attach(fd, "vale1:perC"));
	close(a.fd);
	CHECK(attach(fd, "vale1:perC") == 0);
	FAILS(EBUSY, attach(fd, "vale1:perC"));
	FAILS(EBUSY, attach(fd, "vale2:perC"));
	FAILS(EBUSY, delete(fd, "perC"));
	CHECK(bind_to("perC") == EBUSY && bind_to("vale0:perC") == EBUSY);
	CHECK(bind_to("vale1:perC") == EBUSY && bind_to("perC{x") == EBUSY);
	a = open_port("vale0:a", 0), b = open_port("vale1:b", 0);
	for (i = 0; i < 100; i++) {
		send_frame(&a, 60 + i, i), expect_frame(&b, 60 + i, i);
		send_frame(&b, 1514 - i, i), expect_frame(&a, 1514 - i, i);
	}
	/* The interface leaves the second switch before the first. */
	FAILS(EBUSY, detach(fd, "vale0:perC"));
	CHECK(detach(fd, "vale1:perC") == 0);
	FAILS(ENXIO, detach(fd, "vale1:perC"));
	close(b.fd);
	b = open_port("perC", 0);
	send_frame(&a, 60, 7), expect_frame(&b, 60, 7);
	close(a.fd), close(b.fd);
	CHECK(detach(fd, "vale0:perC") == 0 && delete(fd, "perC") == 0);
}

static void carries_frames(void)
{
	struct port a, b, c;
	int fd = device();

	CHECK(make(fd, "per4") == 0 && attach(fd, "vale0:per4") == 0);
	a = open_port("per4", 0), b = open_port("vale0:b", 0);
	CHECK(!strcmp(a.nifp->ni_name, "vale0:per4"));
	send_frame(&a, 60, 1), expect_frame(&b, 60, 1);
	send_frame(&b, 70, 2), expect_frame(&a, 70, 2);
	/* Both names are one port: the same rings. */
	c = open_port("vale0:per4", 0);
	CHECK(c.reg.nr_mem_id == a.reg.nr_mem_id);
	send_frame(&c, 80, 3), expect_frame(&b, 80, 3);
	close(a.fd), close(c.fd);
	CHECK(detach(fd, "vale0:per4") == 0);
	/* Alone, what it sends goes nowhere. */
	a = open_port("per4", 0);
	send_frame(&a, 60, 4);
	close(a.fd), close(b.fd);
	CHECK(delete(fd, "per4") == 0);
}

static void pipes_of_interfaces(void)
{
	struct port a = open_port("per5{x", 0), b = open_port("per5}x", 0);
	int fd = device();

	CHECK(a.reg.nr_mem_id == b.reg.nr_mem_id);
	send_frame(&a, 60, 5), expect_frame(&b, 60, 5);
	/* The interface came with its pipe. */
	CHECK(bind_to("per5") == 0);
	FAILS(EINVAL, delete(fd, "per5"));
	FAILS(EEXIST, make(fd, "per5"));
	close(a.fd), close(b.fd);
	CHECK(make(fd, "per5") == 0);
	a = open_port("per5{x", 0);
	FAILS(EBUSY, delete(fd, "per5"));
	close(a.fd);
	CHECK(delete(fd, "per5") == 0);
}

static void listed(void)
{
	struct nmreq_vale_list list;
	int fd = device();

	CHECK(make(fd, "per6") == 0);
	memset(&list, 0, sizeof(list));
	FAILS(ENOENT, request(fd, NETMAP_REQ_VALE_LIST, "vale5:per6", &list, NULL));
	CHECK(attach(fd, "vale5:per6") == 0);
	CHECK(request(fd, NETMAP_REQ_VALE_LIST, "vale5:per6", &list, NULL) == 0);
	CHECK(list.nr_port_idx == 0);
	CHECK(detach(fd, "vale5:per6") == 0 && delete(fd, "per6") == 0);
}

static void polling(void)
{
	struct nmreq_vale_polling poll = { NETMAP_POLLING_MODE_SINGLE_CPU, 0, 1, 0 };
	struct port port = open_port("vale0:a", 0);

	FAILS(EOPNOTSUPP, request(port.fd, NETMAP_REQ_VALE_POLLING_ENABLE, "vale0:a", &poll, NULL));
	FAILS(EOPNOTSUPP, request(port.fd, NETMAP_REQ_VALE_POLLING_DISABLE, "vale0:a", &poll, NULL));
	FAILS(ENXIO, request(port.fd, NETMAP_REQ_VALE_POLLING_ENABLE, "vale0:none", &poll, NULL));
	FAILS(EINVAL, request(port.fd, NETMAP_REQ_VALE_POLLING_ENABLE, "nosuchif9", &poll, NULL));
}

static void legacy_commands(void)
{
	struct nmreq old;
	int fd = device();

	memset(&old, 0, sizeof(old));
	old.nr_version = NETMAP_API;
	strcpy(old.nr_name, "per7");
	old.nr_cmd = NETMAP_BDG_NEWIF;
	old.nr_rx_slots = 32;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	CHECK(old.nr_rx_slots == 32 && old.nr_tx_slots > 0 && old.nr_arg2 > 1);
	strcpy(old.nr_name, "vale0:per7");
	old.nr_cmd = NETMAP_BDG_ATTACH;
	old.nr_arg1 = old.nr_arg2 = 0;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	old.nr_cmd = NETMAP_BDG_DETACH;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	strcpy(old.nr_name, "per7");
	old.nr_cmd = NETMAP_BDG_DELIF;
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0);
	FAILS(ENXIO, ioctl(fd, NIOCREGIF, &old));
}

static const struct test tests[] = {
	TEST(taken_along), TEST(in_two_switches), TEST(made_and_deleted), TEST(names),
	TEST(one_side), TEST(attached_and_detached), TEST(held), TEST(carries_frames),
	TEST(pipes_of_interfaces), TEST(listed), TEST(polling), TEST(legacy_commands),
};
MAIN(tests)
