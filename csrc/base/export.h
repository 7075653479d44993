// Marks what leaves libmydist.so; everything else is compiled with hidden visibility.
#pragma once

#define MYDIST_EXPORT [[gnu::visibility("default")]]
