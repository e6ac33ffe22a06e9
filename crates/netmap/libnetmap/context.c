// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * context.c - where messages go, where memory is from, and the lock of the list of memories.
 *
 * The lock is one for all contexts, so that a program may copy a context and change the copy. It
 * is held for a few lines, and while a memory is mapped.
 */
#include <pthread.h>
#include "internal.h"

#define MESSAGE_MAX 512

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void print(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	fprintf(stderr, "%s\n", message);
}

static void *allocate(struct nmctx *ctx, size_t size)
{
	(void)ctx;
	return malloc(size);
}

static void release(struct nmctx *ctx, void *memory)
{
	(void)ctx;
	free(memory);
}

static void lock(struct nmctx *ctx, int take)
{
	(void)ctx;
	if (take)
		pthread_mutex_lock(&mutex);
	else
		pthread_mutex_unlock(&mutex);
}

static struct nmctx first = {
	.verbose = 1,
	.error = print,
	.malloc = allocate,
	.free = release,
	.lock = lock,
};

static struct nmctx *current = &first;

struct nmctx *nmctx_get(void)
{
	return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

struct nmctx *nmctx_set_default(struct nmctx *ctx)
{
	return __atomic_exchange_n(&current, ctx, __ATOMIC_ACQ_REL);
}

void nmctx_set_threadsafe(void)
{
	struct nmctx *ctx = nmctx_get();

	if (!ctx->lock)
		ctx->lock = lock;
}

static void send_message(struct nmctx *ctx, const char *format, va_list arguments)
{
	char message[MESSAGE_MAX];
	int error = errno;

	if (ctx->verbose) {
		vsnprintf(message, sizeof(message), format, arguments);
		ctx->error(ctx, message);
	}
	errno = error;
}

void nmctx_ferror(struct nmctx *ctx, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	send_message(ctx, format, arguments);
	va_end(arguments);
}

int nmctx_fails_(struct nmctx *ctx, int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	send_message(ctx, format, arguments);
	va_end(arguments);
	errno = error;
	return -1;
}

void *nmctx_malloc(struct nmctx *ctx, size_t size)
{
	return ctx->malloc(ctx, size);
}

void nmctx_free(struct nmctx *ctx, void *memory)
{
	ctx->free(ctx, memory);
}

void nmctx_lock(struct nmctx *ctx)
{
	if (ctx->lock)
		ctx->lock(ctx, 1);
}

void nmctx_unlock(struct nmctx *ctx)
{
	if (ctx->lock)
		ctx->lock(ctx, 0);
}
