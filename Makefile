# tartan - build, test, demonstrate. `make help` lists the targets; CONTRIBUTING.md explains them.
#
#   VARIABLE      default   meaning
#   CC            cc        compiler (gcc or clang)
#   MPI           auto      1, 0, or auto: use MPI when MPICC is found
#   MPICC         mpicc     which MPI; tests start ranks with $MPIRUN (mpirun)
#   BUILD         build     where everything goes
#   V                       1: show the commands
.DEFAULT_GOAL := all
SHELL := /bin/bash
BUILD ?= build
MPI   ?= auto
MPICC ?= mpicc

# --- what this machine has --------------------------------------------------------------------------------------
ifeq ($(MPI),auto)
  override MPI := $(if $(shell command -v $(MPICC) 2>/dev/null),1,0)
endif
ifeq ($(MPI),1)
  # Open MPI and MPICH print their flags differently; both know how to show them.
  MPI_CFLAGS := $(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -compile_info 2>/dev/null | tr ' ' '\n' | grep -E '^-[ID]' | sort -u)
  MPI_LIBS   := $(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -link_info 2>/dev/null | tr ' ' '\n' | grep -E '^-([lL]|Wl)' )
  MPI_DEFS   := -DTT_HAVE_MPI
endif
PACKAGES := jansson libpcre2-8 libutf8proc libxxhash yaml-0.1

CFLAGS   ?= -O2 -g
# gcc reports every message that could be long (-Wformat-truncation); ours are cut on purpose. clang has no such flag.
QUIET := $(shell echo | $(CC) -Werror -Wno-format-truncation -x c -c - -o /dev/null 2>/dev/null && echo -Wno-format-truncation)
WARNINGS := -std=c11 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror $(QUIET)
# No -ffast-math: results are compared bit by bit and NaN is tested for. Contraction is fixed per file, so that the
# same source gives the same bits wherever it is inlined.
TT_CFLAGS = $(WARNINGS) -D_GNU_SOURCE -Iinclude -Isrc -fopenmp -fno-math-errno -ffp-contract=off \
            $(shell pkg-config --cflags $(PACKAGES)) $(MPI_CFLAGS) $(MPI_DEFS) $(CFLAGS) $(EXTRA)
TT_LIBS   = $(shell pkg-config --libs $(PACKAGES)) -ldnnl -lm -lpthread $(MPI_LIBS) $(LDEXTRA)

# `make V=1` shows the commands.
Q := $(if $(V),,@)

# --- sources ----------------------------------------------------------------------------------------------------
SOURCES := $(filter-out src/cli/%,$(wildcard src/*/*.c src/*/*/*.c))
CLI     := $(wildcard src/cli/*.c)
TESTS   := $(wildcard tests/*/test_*.c)
TEST_SUPPORT := $(wildcard tests/support/*.c)
BENCHES := $(wildcard bench/*.c)
EXAMPLES := $(wildcard examples/*.c)

# Two builds of the same sources: the one that is shipped, and the one that tests use, in which step memory is
# filled with NaN when it is granted and when it is released, faults can be planted (src/base/fault.h, src/comm/inject.h),
# and ranks check that their operations agree.
CHECK_DEFS := -DTT_DEBUG_MEMORY -DTT_FAULT_SWITCHES -DTT_CHECK_OPERATIONS
LIB       := $(BUILD)/libtartan.a
TEST_LIB  := $(BUILD)/check/libtartan.a
objects    = $(patsubst %.c,$(1)/%.o,$(2))
OBJ       := $(call objects,$(BUILD)/obj,$(SOURCES))
TEST_OBJ  := $(call objects,$(BUILD)/check,$(SOURCES))
CLI_OBJ   := $(call objects,$(BUILD)/obj,$(CLI))
TEST_CLI_OBJ := $(call objects,$(BUILD)/check,$(CLI))
TEST_BINS := $(patsubst %.c,$(BUILD)/%,$(TESTS))
BENCH_BINS := $(patsubst %.c,$(BUILD)/%,$(BENCHES))
EXAMPLE_BINS := $(patsubst %.c,$(BUILD)/%,$(EXAMPLES))

.PHONY: all lib tests benches examples
all: lib $(BUILD)/tartan
lib: $(LIB)
tests: $(TEST_BINS) $(BUILD)/check/tartan
benches: $(BENCH_BINS)
examples: $(EXAMPLE_BINS)

# Kernels are compiled once per instruction set, chosen at run time (src/kernels/cpu/cpu.c). Their sums of products are
# meant to be multiply-adds, so these files contract; -O3 for their short inner loops.
KERNEL_FLAGS := -O3 -ffp-contract=fast
FLAGS_src/kernels/cpu/simd_base   := $(KERNEL_FLAGS)
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
  FLAGS_src/kernels/cpu/simd_avx2   := $(KERNEL_FLAGS) -mavx2 -mfma
  FLAGS_src/kernels/cpu/simd_avx512 := $(KERNEL_FLAGS) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512
endif

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(TT_CFLAGS) $(FLAGS_$*) -MMD -MP -c $< -o $@
$(BUILD)/check/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(TT_CFLAGS) $(FLAGS_$*) $(CHECK_DEFS) -MMD -MP -c $< -o $@
$(BUILD)/check/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(TT_CFLAGS) $(CHECK_DEFS) -Itests -MMD -MP -c $< -o $@

$(LIB): $(OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $^
$(TEST_LIB): $(TEST_OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $^
$(BUILD)/tartan: $(CLI_OBJ) $(LIB)
	$(Q)$(CC) $(TT_CFLAGS) $^ -o $@ $(TT_LIBS)
$(BUILD)/check/tartan: $(TEST_CLI_OBJ) $(TEST_LIB)
	$(Q)$(CC) $(TT_CFLAGS) $^ -o $@ $(TT_LIBS)
$(BUILD)/tests/%: $(BUILD)/check/tests/%.o $(call objects,$(BUILD)/check,$(TEST_SUPPORT)) $(TEST_LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TT_CFLAGS) $^ -o $@ -lcmocka $(TT_LIBS)
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TT_CFLAGS) $^ -o $@ $(TT_LIBS)
$(BUILD)/examples/%: $(BUILD)/obj/examples/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TT_CFLAGS) $^ -o $@ $(TT_LIBS)

.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' -type f 2>/dev/null)

# --- what people type ---------------------------------------------------------------------------------------------
# The set-up may install mpicc and pkg-config, which this file asks when it is read: the work is done by a second make.
.PHONY: test test-full demo check layers objects portable mpich asan fuzz bench format clean help
## make             build the program and the library
## make demo        install what is missing, train a small model on two ranks, let it answer
## make test        install what is missing, run every test
## make test-full   the same with every combination of model, mesh and way to run, and with MPICH too where it is
##                  installed: tens of minutes
test test-full demo:
	@tools/setup.sh
	@$(MAKE) --no-print-directory run-$@
run-test: check
run-test-full: export TT_FULL := 1
run-test-full: export TT_TEST_SECONDS ?= 3600
run-test-full: check
	@TT_FULL= $(MAKE) --no-print-directory mpich
run-demo: all
	@BUILD=$(BUILD) tools/demo.sh
.PHONY: run-test run-test-full run-demo

## make check       run the tests without installing anything; ONLY="data model" for some folders
check: all tests examples layers objects
	@BUILD=$(BUILD) tests/run.sh $(ONLY)
layers:
	@tools/check-layers.sh
objects: $(LIB) $(BUILD)/tartan
	@BUILD=$(BUILD) CC=$(CC) tools/check_portable.sh objects starts
## make portable    whether it runs elsewhere: no stray instructions, an old x86-64, clang, 64-bit Arm (emulated; minutes)
portable: all
	@BUILD=$(BUILD) CC=$(CC) tools/check_portable.sh
## make mpich       the tests that start MPI processes, with MPICH where it stands beside another MPI
mpich:
	@if command -v mpicc.mpich >/dev/null && command -v mpirun.mpich >/dev/null; then \
	  $(MAKE) --no-print-directory check MPI=1 MPICC=mpicc.mpich MPIRUN=mpirun.mpich BUILD=$(BUILD)/mpich ONLY="comm cli examples"; \
	else echo "mpich: skipped, no mpicc.mpich and mpirun.mpich (Debian: libmpich-dev, mpich)"; fi
## make asan        the tests under the address and undefined-behaviour sanitizers (without MPI: it leaks on its own account)
asan:
	@$(MAKE) --no-print-directory check MPI=0 BUILD=$(BUILD)/asan EXTRA="-fsanitize=address,undefined \
	  -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1" LDEXTRA="-fsanitize=address,undefined" TT_TEST_SECONDS=600
## make fuzz        build the fuzz targets (clang, libFuzzer, sanitizers) into build/fuzz/; run one with its corpus:
##                  build/fuzz/fuzz_safetensors -max_total_time=600 build/fuzz/found fuzz/corpus/safetensors
FUZZ := $(patsubst fuzz/%.c,%,$(wildcard fuzz/fuzz_*.c))
# The sanitizers keep clang from vectorizing some loops that are marked, of which it would make errors.
FUZZ_FLAGS := -fno-sanitize-recover=undefined -fno-omit-frame-pointer -Wno-pass-failed -O1
fuzz:
	@$(MAKE) --no-print-directory CC=clang MPI=0 BUILD=$(BUILD)/fuzz EXTRA="-fsanitize=fuzzer-no-link,address,undefined $(FUZZ_FLAGS)" \
	  LDEXTRA="-fsanitize=fuzzer,address,undefined" $(addprefix $(BUILD)/fuzz/,$(FUZZ))
	@mkdir -p $(BUILD)/fuzz/found
$(BUILD)/fuzz_%: $(BUILD)/check/fuzz/fuzz_%.o $(TEST_LIB)
	$(Q)$(CC) $(TT_CFLAGS) $^ -o $@ $(TT_LIBS)
## make bench       build the benchmarks into build/bench/; bench/README.md says what they measure and how they are run
bench: benches
## make format      clang-format over all sources
format:
	clang-format -i $(wildcard include/tartan/*.h src/*/*.[ch] src/*/*/*.[ch] src/*/*/*.inc tests/*/*.[ch] bench/*.c examples/*.c fuzz/*.c)
clean:
	rm -rf $(BUILD)
help:
	@sed -n 's/^## //p' Makefile
