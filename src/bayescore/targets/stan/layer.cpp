// The C functions that bayescore calls through ctypes: one Stan model, many draws per call.
//
// Points are rows of a matrix n x D in row-major order. No exception leaves this file: a function that can fail
// as a whole returns its message as text (nullptr for success; the caller gives the text back to bs_free_text).
// A draw that Stan rejects gets value -inf (or NaN entries) and a NaN gradient, and its neighbours are not touched.

#include <stan/io/json/json_data.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#define BS_EXPORT extern "C" __attribute__((visibility("default")))

// Defined by the C++ that stanc writes.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* messages);

namespace {

using Model = stan::model::model_base;
using Vector = Eigen::VectorXd;

constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();
constexpr double MINUS_INFINITY = -std::numeric_limits<double>::infinity();

char* copy_text(const std::string& text) {
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// Runs f and returns nullptr, or the message of what it threw.
template <typename F>
char* guarded(F&& f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    return copy_text(error.what());
  } catch (...) {
    return copy_text("the model threw something that is not a C++ standard exception");
  }
}

// Every thread that differentiates needs a tape of its own.
void ensure_tape() { static thread_local stan::math::ChainableStack tape; }

template <typename T>
T log_density(const Model& model, Eigen::Matrix<T, -1, 1>& x, bool propto, bool jacobian) {
  if (propto)
    return jacobian ? model.log_prob_propto_jacobian(x, nullptr) : model.log_prob_propto(x, nullptr);
  return jacobian ? model.log_prob_jacobian(x, nullptr) : model.log_prob(x, nullptr);
}

// Clears the tape when a draw is done, also after an exception.
struct TapeGuard {
  ~TapeGuard() {
    while (!stan::math::empty_nested()) stan::math::recover_memory_nested();
    stan::math::recover_memory();
  }
};

double gradient_at(const Model& model, const double* x, Eigen::Index D, bool propto, bool jacobian, double* grad) {
  TapeGuard guard;
  Eigen::Matrix<stan::math::var, -1, 1> point(D);
  for (Eigen::Index i = 0; i < D; ++i) point[i] = stan::math::var(x[i]);
  stan::math::var lp = log_density(model, point, propto, jacobian);
  const double value = lp.val();
  stan::math::grad(lp.vi_);
  for (Eigen::Index i = 0; i < D; ++i) grad[i] = point[i].adj();
  return value;
}

double value_at(const Model& model, const double* x, Eigen::Index D, bool propto, bool jacobian) {
  if (propto) {  // with plain numbers every term is a constant, and Stan would drop them all
    TapeGuard guard;
    Eigen::Matrix<stan::math::var, -1, 1> point(D);
    for (Eigen::Index i = 0; i < D; ++i) point[i] = stan::math::var(x[i]);
    return log_density(model, point, propto, jacobian).val();
  }
  Vector point = Eigen::Map<const Vector>(x, D);
  return log_density(model, point, propto, jacobian);
}

// The first rejection among the draws of one thread.
struct Rejections {
  int64_t count = 0;
  int64_t first = std::numeric_limits<int64_t>::max();
  std::string message;

  void add(int64_t draw, const char* text) {
    ++count;
    if (draw < first) {
      first = draw;
      message = text;
    }
  }
};

// Runs work(i) for i in [0, n), on several threads where that pays: the first draw is timed, and
// threads are started only if the rest takes longer than starting them.
template <typename F>
int64_t for_each_draw(int64_t n, int threads, char** message, F&& work) {
  const auto began = std::chrono::steady_clock::now();
  auto run = [&work](int64_t from, int64_t to, Rejections& rejections) {
    ensure_tape();
    for (int64_t i = from; i < to; ++i) {
      try {
        work(i);
      } catch (const std::exception& error) {
        rejections.add(i, error.what());
      } catch (...) {
        rejections.add(i, "the model threw something that is not a C++ standard exception");
      }
    }
  };
  std::vector<Rejections> parts(1);
  int64_t done = std::min<int64_t>(n, 1);
  run(0, done, parts[0]);
  const double each = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  constexpr double worth_a_thread = 2e-4;  // seconds of work; starting a thread costs about a quarter of it
  const double affordable = each * static_cast<double>(n - done) / worth_a_thread;
  const int64_t workers = std::min<int64_t>({threads, n - done, static_cast<int64_t>(affordable) + 1});
  if (workers <= 1) {
    run(done, n, parts[0]);
  } else {
    parts.resize(workers);
    std::vector<std::thread> pool;
    const int64_t chunk = (n - done + workers - 1) / workers;
    for (int64_t w = 1; w < workers; ++w) {
      const int64_t from = std::min(n, done + w * chunk), to = std::min(n, from + chunk);
      try {
        pool.emplace_back([&run, &parts, from, to, w] { run(from, to, parts[w]); });
      } catch (const std::system_error&) {  // the machine gives no more threads
        run(from, to, parts[w]);
      }
    }
    run(done, std::min(n, done + chunk), parts[0]);
    for (auto& thread : pool) thread.join();
  }
  Rejections total;
  for (const auto& part : parts) {
    total.count += part.count;
    if (part.first < total.first) {
      total.first = part.first;
      total.message = part.message;
    }
  }
  if (total.count) *message = copy_text(total.message);
  return total.count;
}

}  // namespace

BS_EXPORT void bs_free_text(char* text) { delete[] text; }

BS_EXPORT void bs_free_model(Model* model) { delete model; }

// Makes a model from data as JSON text.
BS_EXPORT char* bs_new_model(const char* json, uint32_t seed, Model** model) {
  return guarded([&] {
    ensure_tape();
    std::istringstream in(json);
    stan::json::json_data data(in);
    std::ostringstream messages;
    *model = &new_model(data, seed, &messages);
  });
}

BS_EXPORT int64_t bs_dim(const Model* model) { return static_cast<int64_t>(model->num_params_r()); }

// Names joined by newlines. what: 0 unconstrained; 1 parameters; 2 with transformed parameters; 3 with generated
// quantities too.
BS_EXPORT char* bs_names(const Model* model, int what, char** names) {
  return guarded([&] {
    std::vector<std::string> list;
    if (what == 0)
      model->unconstrained_param_names(list, false, false);
    else
      model->constrained_param_names(list, what >= 2, what >= 3);
    std::string text;
    for (const auto& name : list) text += name + '\n';
    *names = copy_text(text);
  });
}

// Log densities (n) and, unless grad is null, gradients (n x D). Returns how many draws were rejected, and the
// message of the first of them.
BS_EXPORT int64_t bs_log_density(const Model* model, int64_t n, const double* x, int propto, int jacobian, int threads,
                                 double* value, double* grad, char** message) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  return for_each_draw(n, threads, message, [=](int64_t i) {
    value[i] = MINUS_INFINITY;
    double* row = grad ? grad + i * D : nullptr;
    if (row) std::fill(row, row + D, NOT_A_NUMBER);
    const double v = row ? gradient_at(*model, x + i * D, D, propto, jacobian, row)
                         : value_at(*model, x + i * D, D, propto, jacobian);
    if (std::isfinite(v))
      value[i] = v;
    else if (row)
      std::fill(row, row + D, NOT_A_NUMBER);
  });
}

// The variables of every draw, n x K in the order of bs_names(include + 1). Row i depends on seed and i alone. Where
// the generated quantities (or the transformed parameters) of a draw are rejected, what comes before them is kept.
BS_EXPORT int64_t bs_constrain(const Model* model, int64_t n, const double* x, int include, uint32_t seed, int64_t K,
                               int threads, double* out, char** message) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  return for_each_draw(n, threads, message, [=](int64_t i) {
    std::fill(out + i * K, out + (i + 1) * K, NOT_A_NUMBER);
    Vector point = Eigen::Map<const Vector>(x + i * D, D), row;
    std::exception_ptr rejection;
    for (int level = include; level >= 0; --level) {
      try {
        auto rng = stan::services::util::create_rng(seed, static_cast<unsigned int>(i + 1));
        model->write_array(rng, point, row, level >= 1, level >= 2, nullptr);
        if (row.size() > K) throw std::length_error("the model wrote more variables than it named");
        std::copy(row.data(), row.data() + row.size(), out + i * K);
        break;
      } catch (...) {
        if (!rejection) rejection = std::current_exception();
      }
    }
    if (rejection) std::rethrow_exception(rejection);
  });
}

// Unconstrained points (n x D) from parameters (n x K).
BS_EXPORT int64_t bs_unconstrain(const Model* model, int64_t n, const double* in, int64_t K, double* out,
                                 char** message) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  return for_each_draw(n, 1, message, [=](int64_t i) {
    Vector row = Eigen::Map<const Vector>(in + i * K, K), point;
    model->unconstrain_array(row, point, nullptr);
    std::copy(point.data(), point.data() + D, out + i * D);
  });
}

// Seconds for `times` gradients at one point in a bare loop: what a call costs without Python.
BS_EXPORT double bs_seconds(const Model* model, const double* x, int64_t times) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  ensure_tape();
  Vector g(D);
  const auto began = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) {
    try {
      gradient_at(*model, x, D, false, true, g.data());
    } catch (const std::exception&) {
      return NOT_A_NUMBER;
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}
