/*
 * internal.h - what the parts of libnetmap.a share beside libnetmap.h.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * All functions have hidden visibility: they are the program's or the shared library's that links
 * the archive, and no other copy in the process replaces them, nor they any other.
 */
#ifndef LIBNETMAP_INTERNAL_H
#define LIBNETMAP_INTERNAL_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <libnetmap.h>

/* What is undone with a port, the last first. */
struct nmport_cleanup_d {
	struct nmport_cleanup_d *next;
	struct nmreq_register asked; /* what nmport_register() asked for ... */
	int is_register;             /* ... if this is its */
	struct nmreq_option *option; /* in the request of the port, or NULL */
	void *mapping;               /* of size bytes, or NULL */
	size_t size;
};

/* Sends a message, and returns -1 with this errno. */
int nmctx_fails_(struct nmctx *ctx, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The options that every port string may have. */
extern struct nmreq_opt_parser *const nmport_options_;

#endif
