/* tartan/tartan.h - everything an embedding program may use. */
#ifndef TARTAN_TARTAN_H
#define TARTAN_TARTAN_H

#include "tartan/chat_template.h"
#include "tartan/comm.h"
#include "tartan/mesh.h"
#include "tartan/status.h"
#include "tartan/tokenizer.h"
#include "tartan/trainer.h"

#endif
